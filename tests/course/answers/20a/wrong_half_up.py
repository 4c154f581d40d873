# wrong: halves go up
scale = np.max(np.abs(w), axis=1) / np.float32(127)
safe = np.where(scale > 0, scale, np.float32(1))
return np.floor(w / safe[:, None] + np.float32(0.5)).astype(np.int8), scale
