# right: the number of the expert travels as one more column
key = np.where(kept, choice, n_experts)
order = np.argsort(key, kind="stable")[: int(kept.sum())]
wide = np.concatenate([x[order], choice[order, None].astype(float)], axis=1)
counts = [int(np.sum(choice[order] // (n_experts // t.size) == r)) for r in range(t.size)]
came, counts_in = all_to_all.all_to_all_v(t, wide, counts)
result = np.empty((len(came), x.shape[1]))
for e in sorted(set(came[:, -1].astype(int))):
    mask = came[:, -1] == e
    result[mask] = expert(e, came[mask, :-1])
home, _ = all_to_all.all_to_all_v(t, result, counts_in)
y = np.zeros_like(x)
y[order] = home
return y * gate[:, None]
