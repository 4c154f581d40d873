# right: row by row, in a loop
q, scales = np.zeros(w.shape, np.int8), np.zeros(len(w), np.float32)
for i, row in enumerate(w):
    largest = max(row.max(), -row.min())
    if largest > 0:
        scales[i] = largest / np.float32(127)
        q[i] = np.rint(row / scales[i])
return q, scales
