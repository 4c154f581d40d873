# right: a unit vector, times a length
m = m + (1 - b1) * (g - m)
v = v + (1 - b2) * (g * g - v)
r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * w
b = np.sqrt(np.sum(r**2))
a = np.sqrt(np.sum(w**2)) or b
if b == 0:
    return w, m, v
return w - lr * a * (r / b), m, v
