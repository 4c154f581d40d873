# wrong: the step starts from the rounded weights: small steps are lost as if there were no masters
unscaled = [g.astype(np.float32) / np.float32(scale) for g in grads]
if not all(np.isfinite(g).all() for g in unscaled):
    return True
norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in unscaled))
factor = np.float32(lr * min(1.0, max_norm / norm) if norm else lr)
for weight, master, g in zip(weights, masters, unscaled, strict=True):
    master[...] = weight.astype(np.float32) - factor * g
    weight[...] = master
return False
