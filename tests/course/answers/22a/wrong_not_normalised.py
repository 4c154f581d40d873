# wrong: o is not divided by the sum
s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
s = np.where(at_q[:, None] >= at_k, s, -np.inf)
top = s.max(-1, keepdims=True)
sees = top > -np.inf
p = np.exp(s - np.where(sees, top, 0))
total = np.where(sees, p.sum(-1, keepdims=True), 1)
return p @ v, np.where(sees, top + np.log(total), -np.inf)[..., 0]
