# wrong: a dropped token keeps its x, which the residual path adds once more
order = np.flatnonzero(kept)
order = order[np.argsort(choice[order], kind="stable")]
to = choice[order] // (n_experts // t.size)
counts = np.bincount(to, minlength=t.size)
rows, counts_in = all_to_all.all_to_all_v(t, x[order], counts)
which, _ = all_to_all.all_to_all_v(t, choice[order], counts, counts_in)
out = np.empty_like(rows)
for e in set(which.tolist()):
    out[which == e] = expert(e, rows[which == e])
back, _ = all_to_all.all_to_all_v(t, out, counts_in, counts)
y = x.copy()
y[order] = gate[order, None] * back
return y
