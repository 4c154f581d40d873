# right: gP - D in one product, as gO (V_j - O_i)
p = np.exp(s - lse)
gs = np.empty_like(p)
for i in range(len(s)):
    gs[i] = p[i] * ((v - o[i]) @ go[i])
gs *= q.shape[1] ** -0.5
return gs @ k, gs.T @ q, p.T @ go
