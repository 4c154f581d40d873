# right: the new weights are computed and then copied
m[:] = m + (1 - b1) * (g - m)
v[:] = v + (1 - b2) * (g**2 - v)
step = (m / (1 - b1**t)) / (eps + (v / (1 - b2**t)) ** 0.5)
w[:] = w - lr * decay * w - lr * step
