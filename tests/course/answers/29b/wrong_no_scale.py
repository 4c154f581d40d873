# wrong: the scores are taken for q k^T
scale = 1 / np.sqrt(q.shape[1])
p = np.exp(s - lse)
gp = go @ v.T
gs = p * (gp - np.sum(go * o, axis=1, keepdims=True))
return gs @ k, gs.T @ q, p.T @ go
