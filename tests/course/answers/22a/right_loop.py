# right: query by query, with the keys that it sees alone
o = np.zeros(q.shape)
lse = np.full(q.shape[:2], -np.inf)
for h in range(q.shape[0]):
    for i in range(q.shape[1]):
        seen = at_k <= at_q[i]
        if not seen.any():
            continue
        scores = k[h, seen] @ q[h, i] / q.shape[2] ** 0.5
        m = scores.max()
        e = np.exp(scores - m)
        o[h, i] = e @ v[h, seen] / e.sum()
        lse[h, i] = m + np.log(e.sum())
return o, lse
