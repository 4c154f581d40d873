# wrong: the whole gradient is all-reduced
bounds = chunks.bounds(w.size, t.size)
mine = slice(bounds[t.rank], bounds[t.rank + 1])
g = ring_blocks.all_reduce(t, gradient)[mine] / t.size
m[:] = beta1 * m + (1 - beta1) * g
v[:] = beta2 * v + (1 - beta2) * g**2
w[mine] -= lr * m / (1 - beta1**k) / (np.sqrt(v / (1 - beta2**k)) + eps)
ring_blocks.all_gather(t, w, bounds)
