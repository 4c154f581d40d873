# wrong: the gates are forgotten
order = np.flatnonzero(kept)
order = order[np.argsort(choice[order], kind="stable")]
to = choice[order] // (n_experts // t.size)
counts = np.bincount(to, minlength=t.size)
rows, counts_in = all_to_all.all_to_all_v(t, x[order], counts)
which, _ = all_to_all.all_to_all_v(t, choice[order], counts, counts_in)
out = np.empty_like(rows)
for e in set(which.tolist()):
    out[which == e] = expert(e, rows[which == e])
y = np.zeros_like(x)
y[order], _ = all_to_all.all_to_all_v(t, out, counts_in, counts)
return y
