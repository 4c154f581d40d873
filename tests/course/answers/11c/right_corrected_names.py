# right: corrected means with names
bounds = chunks.bounds(w.size, t.size)
mine = slice(bounds[t.rank], bounds[t.rank + 1])
g = ring_blocks.reduce_scatter(t, gradient, bounds) / t.size
m[:] = beta1 * m + (1 - beta1) * g
v[:] = beta2 * v + (1 - beta2) * g**2
m_hat = m / (1 - beta1**k)
v_hat = v / (1 - beta2**k)
w[mine] = w[mine] - lr * m_hat / (v_hat**0.5 + eps)
ring_blocks.all_gather(t, w, bounds)
