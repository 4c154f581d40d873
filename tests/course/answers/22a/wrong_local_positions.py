# wrong: a triangle of the block, whatever part of the text it is
s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
s = np.where(np.tri(s.shape[1], s.shape[2], dtype=bool), s, -np.inf)
top = s.max(-1, keepdims=True)
p = np.exp(s - top)
total = p.sum(-1, keepdims=True)
return p @ v / total, (top + np.log(total))[..., 0]
