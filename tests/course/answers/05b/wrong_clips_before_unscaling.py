# wrong: the norm is taken of the scaled gradients
scaled = [g.astype(np.float32) for g in grads]
if not all(np.isfinite(g).all() for g in scaled):
    return True
norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in scaled))
factor = min(1.0, max_norm / norm) if norm else 1.0
for weight, master, g in zip(weights, masters, scaled, strict=True):
    master -= np.float32(lr) * (g * np.float32(factor) / np.float32(scale))
    weight[...] = master
return False
