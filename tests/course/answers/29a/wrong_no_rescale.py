# wrong: the sums stay as they were when the maximum grows
new = np.maximum(m, s.max(axis=1, keepdims=True))
p = np.exp(s - new)
return new, total + p.sum(axis=1, keepdims=True), o + p @ v
