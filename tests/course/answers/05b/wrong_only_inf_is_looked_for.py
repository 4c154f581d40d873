# wrong: nan is no inf, and goes into the weights
unscaled = [g.astype(np.float32) / np.float32(scale) for g in grads]
if any(np.isinf(g).any() for g in unscaled):
    return True
norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in unscaled))
factor = np.float32(lr * min(1.0, max_norm / norm) if norm else lr)
for weight, master, g in zip(weights, masters, unscaled, strict=True):
    master -= factor * g
    weight[...] = master
return False
