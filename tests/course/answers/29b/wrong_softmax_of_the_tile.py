# wrong: the weights have the sum 1 in each tile
scale = 1 / np.sqrt(q.shape[1])
p = np.exp(s - s.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)
gs = p * (go @ v.T - np.sum(go * o, axis=1, keepdims=True))
return scale * gs @ k, scale * gs.T @ q, p.T @ go
