# right: the moments are changed in place
m *= b1
m += (1 - b1) * g
v *= b2
v += (1 - b2) * g * g
r = m / (1 - b1**t)
r /= np.sqrt(v / (1 - b2**t)) + eps
r += decay * w
a, b = np.linalg.norm(w), np.linalg.norm(r)
return w - lr * r * (a / b if a > 0 and b > 0 else 1.0), m, v
