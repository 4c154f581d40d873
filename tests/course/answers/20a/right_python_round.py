# right: Python's round, which goes to even, too
scales = np.array([np.float32(max(abs(x) for x in row)) / np.float32(127) for row in w])
numbers = [[round(float(x / s)) if s else 0 for x in row] for row, s in zip(w, scales)]
return np.array(numbers, np.int8), scales
