# wrong: m and v as they are
m = b1 * m + (1 - b1) * g
v = b2 * v + (1 - b2) * g**2
r = m / (np.sqrt(v) + eps) + decay * w
a, b = np.linalg.norm(w), np.linalg.norm(r)
return w - lr * (a / b if a and b else 1) * r, m, v
