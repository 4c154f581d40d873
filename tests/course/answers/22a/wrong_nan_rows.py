# wrong: a query that sees no key has the maximum -inf, and nan for a result
s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
s = np.where(at_q[:, None] >= at_k, s, -np.inf)
top = s.max(-1, keepdims=True)
p = np.exp(s - top)
total = p.sum(-1, keepdims=True)
return p @ v / total, (top + np.log(total))[..., 0]
