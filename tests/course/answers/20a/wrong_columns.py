# wrong: a scale for each input, which would stay inside the sum
scale = abs(w).max(0) / np.float32(127)
return np.rint(w / np.where(scale == 0, 1, scale)).astype(np.int8), scale
