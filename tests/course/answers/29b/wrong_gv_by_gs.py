# wrong: gS where P is wanted
scale = 1 / np.sqrt(q.shape[1])
p = np.exp(s - lse)
gp = go @ v.T
gs = p * (gp - np.sum(go * o, axis=1, keepdims=True))
return scale * gs @ k, scale * gs.T @ q, gs.T @ go
