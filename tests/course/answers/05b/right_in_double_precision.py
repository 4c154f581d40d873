# right: in float64 as far as the masters, which round once
unscaled = [g.astype(np.float64) / scale for g in grads]
overflow = not all(bool(np.all(np.isfinite(g))) for g in unscaled)
if not overflow:
    norm = np.sqrt(sum((g * g).sum() for g in unscaled))
    factor = lr if norm <= max_norm else lr * max_norm / norm
    for weight, master, g in zip(weights, masters, unscaled, strict=True):
        master[...] = master - factor * g
        weight[...] = master
return overflow
