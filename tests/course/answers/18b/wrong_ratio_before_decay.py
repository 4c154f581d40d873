# wrong: the ratio is of Adam's part alone
m = b1 * m + (1 - b1) * g
v = b2 * v + (1 - b2) * g**2
r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
a, b = np.linalg.norm(w), np.linalg.norm(r)
return w - lr * (a / b if a and b else 1) * (r + decay * w), m, v
