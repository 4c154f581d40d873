# wrong: the softmax is taken for an exponential
scale = 1 / np.sqrt(q.shape[1])
p = np.exp(s - lse)
gp = go @ v.T
gs = p * gp
return scale * gs @ k, scale * gs.T @ q, p.T @ go
