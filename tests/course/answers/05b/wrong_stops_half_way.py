# wrong: looks for inf array by array while it updates: those before the inf have changed
norm2 = 0.0
for g in grads:
    g = g.astype(np.float32) / np.float32(scale)
    if np.isfinite(g).all():
        norm2 += float((g.astype(np.float64) ** 2).sum())
factor = np.float32(lr * min(1.0, max_norm / math.sqrt(norm2)) if norm2 else lr)
for weight, master, g in zip(weights, masters, grads, strict=True):
    g = g.astype(np.float32) / np.float32(scale)
    if not np.isfinite(g).all():
        return True
    master -= factor * g
    weight[...] = master
return False
