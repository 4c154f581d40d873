# wrong: returns the corrected moments
m = (b1 * m + (1 - b1) * g) / (1 - b1**t)
v = (b2 * v + (1 - b2) * g**2) / (1 - b2**t)
r = m / (np.sqrt(v) + eps) + decay * w
a, b = np.linalg.norm(w), np.linalg.norm(r)
return w - lr * (a / b if a and b else 1) * r, m, v
