# wrong: the maximum of this tile, whatever came before
new = s.max(axis=1, keepdims=True)
p = np.exp(s - new)
shrink = np.exp(m - new)
return new, shrink * total + p.sum(axis=1, keepdims=True), shrink * o + p @ v
