# wrong: scales in float64
scale = np.abs(w.astype(np.float64)).max(axis=1) / 127
safe = np.where(scale > 0, scale, 1)
return np.rint(w / safe[:, None]).astype(np.int8), scale
