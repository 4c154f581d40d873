# right: lists of tokens for each expert, and the number of rows of each expert sent first
per_rank = n_experts // t.size
of_expert = [[i for i in range(len(x)) if kept[i] and choice[i] == e] for e in range(n_experts)]
sizes = np.array([len(tokens) for tokens in of_expert])
theirs = all_to_all.all_to_all(t, sizes.reshape(t.size, per_rank))
order = [i for tokens in of_expert for i in tokens]
counts = sizes.reshape(t.size, per_rank).sum(axis=1)
rows, counts_in = all_to_all.all_to_all_v(t, x[order].reshape(-1, x.shape[1]), counts)
label = np.repeat(np.tile(np.arange(per_rank), t.size), theirs.reshape(-1))
out = np.zeros_like(rows)
for local in range(per_rank):
    if (label == local).any():
        out[label == local] = expert(t.rank * per_rank + local, rows[label == local])
back = all_to_all.all_to_all_v(t, out, counts_in, counts)[0]
y = np.zeros(x.shape)
for i, row in zip(order, back):
    y[i] = gate[i] * row
return y
