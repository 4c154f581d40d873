# wrong: e^score as it is, which overflows
s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
p = np.exp(s) * (at_q[:, None] >= at_k)
total = p.sum(-1, keepdims=True)
safe = np.where(total == 0, 1, total)
return p @ v / safe, np.where(total == 0, -np.inf, np.log(safe))[..., 0]
