# right: the tile by itself, then two partial sums as one
own = s.max(axis=1)[:, None]
own = np.maximum(own, np.where(np.isinf(m), own, m))  # no -inf - -inf where all keys are masked
p = np.exp(s - own)
new = np.maximum(m, own)
a, b = np.exp(m - new), np.exp(own - new)
return new, a * total + b * p.sum(axis=1)[:, None], a * o + b * np.dot(p, v)
