# right: zeros in place of masked exponentials, after a maximum over the seen keys
see = at_q.reshape(-1, 1) >= at_k.reshape(1, -1)
s = (q / np.sqrt(q.shape[2])) @ np.transpose(k, (0, 2, 1))
m = np.max(s, axis=2, keepdims=True, where=see, initial=-1e30)
e = np.exp(np.minimum(s - m, 0)) * see
n = e.sum(axis=2, keepdims=True)
blind = n[..., 0] == 0
n[blind] = 1
lse = m[..., 0] + np.log(n[..., 0])
lse[blind] = -np.inf
return (e / n) @ v, lse
