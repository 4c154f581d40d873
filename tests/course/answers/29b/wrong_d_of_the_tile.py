# wrong: the sum over the keys of the tile
scale = 1 / np.sqrt(q.shape[1])
p = np.exp(s - lse)
gp = go @ v.T
gs = p * gp - p * np.sum(p * gp, axis=1, keepdims=True)
return scale * gs @ k, scale * gs.T @ q, p.T @ go
