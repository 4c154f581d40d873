# right: a pair of a query and a key at a time
gq, gk, gv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
root = np.sqrt(q.shape[1])
for i in range(s.shape[0]):
    d = go[i] @ o[i]
    for j in range(s.shape[1]):
        p = np.exp(s[i, j] - lse[i, 0])
        g = p * (go[i] @ v[j] - d) / root
        gq[i] += g * k[j]
        gk[j] += g * q[i]
        gv[j] += p * go[i]
return gq, gk, gv
