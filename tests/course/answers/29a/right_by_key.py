# right: key after key
m, total, o = m.copy(), total.copy(), o.copy()
for j in range(s.shape[1]):
    score = s[:, j : j + 1]
    new = np.maximum(m, score)
    total = total * np.exp(m - new) + np.exp(score - new)
    o = o * np.exp(m - new) + np.exp(score - new) * v[j]
    m = new
return m, total, o
