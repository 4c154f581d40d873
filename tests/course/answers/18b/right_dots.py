# right: norms by dot products
m = b1 * m + (1 - b1) * g
v = b2 * v + (1 - b2) * g * g
r = (m / (1 - b1**t)) / (eps + (v / (1 - b2**t)) ** 0.5) + decay * w
ww, rr = (w * w).sum(), (r * r).sum()
if ww * rr > 0:
    lr = lr * (ww / rr) ** 0.5
return w - lr * r, m, v
