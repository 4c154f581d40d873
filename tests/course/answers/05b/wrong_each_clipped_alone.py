# wrong: every gradient is clipped by its own norm; the norm of all together is meant
unscaled = [g.astype(np.float32) / np.float32(scale) for g in grads]
if not all(np.isfinite(g).all() for g in unscaled):
    return True
for weight, master, g in zip(weights, masters, unscaled, strict=True):
    norm = float(np.linalg.norm(g.astype(np.float64)))
    master -= np.float32(lr * (min(1.0, max_norm / norm) if norm else 1.0)) * g
    weight[...] = master
return False
