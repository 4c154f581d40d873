# right: lr and the corrections are one factor
w *= 1 - lr * decay
m[...] = b1 * m + (1 - b1) * g
v[...] = b2 * v + (1 - b2) * g * g
w -= lr * (1 - b2**t) ** 0.5 / (1 - b1**t) * m / (np.sqrt(v) + eps * (1 - b2**t) ** 0.5)
