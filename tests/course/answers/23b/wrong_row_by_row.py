# wrong: a call for every row
order = np.flatnonzero(kept)
order = order[np.argsort(choice[order], kind="stable")]
to = choice[order] // (n_experts // t.size)
counts = np.bincount(to, minlength=t.size)
rows, counts_in = all_to_all.all_to_all_v(t, x[order], counts)
which, _ = all_to_all.all_to_all_v(t, choice[order], counts, counts_in)
out = np.empty_like(rows)
for i in range(len(rows)):
    out[i] = expert(which[i], rows[i][None])[0]
back, _ = all_to_all.all_to_all_v(t, out, counts_in, counts)
y = np.zeros_like(x)
y[order] = gate[order, None] * back
return y
