# wrong: only total is scaled
new = np.maximum(m, s.max(axis=1, keepdims=True))
p = np.exp(s - new)
total = total * np.exp(m - new) + p.sum(axis=1, keepdims=True)
return new, total, o + p @ v
