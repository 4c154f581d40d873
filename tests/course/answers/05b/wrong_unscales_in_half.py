# wrong: divided in fp16, where small gradients become 0 again
unscaled = [(g / np.float16(min(scale, 65504))).astype(np.float32) for g in grads]
if not all(np.isfinite(g).all() for g in unscaled):
    return True
norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in unscaled))
factor = lr * min(1.0, max_norm / norm) if norm else lr
for weight, master, g in zip(weights, masters, unscaled, strict=True):
    master -= np.float32(factor) * g
    weight[...] = master
return False
