# wrong: a mean after each tile
new = np.maximum(m, s.max(axis=1, keepdims=True))
p = np.exp(s - new)
shrink = np.exp(m - new)
total = shrink * total + p.sum(axis=1, keepdims=True)
return new, total, (shrink * o + p @ v) / total
