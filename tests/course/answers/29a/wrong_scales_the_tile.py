# wrong: the new sum is scaled, with the tile in it
new = np.maximum(m, s.max(axis=1, keepdims=True))
p = np.exp(s - new)
total = total + p.sum(axis=1, keepdims=True)
o = o + p @ v
shrink = np.exp(m - new)
return new, total * shrink, o * shrink
