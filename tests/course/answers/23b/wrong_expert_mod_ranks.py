# wrong: expert e is looked for on rank e mod n
order = np.flatnonzero(kept)
order = order[np.argsort(choice[order] % t.size, kind="stable")]
counts = np.bincount(choice[order] % t.size, minlength=t.size)
rows, counts_in = all_to_all.all_to_all_v(t, x[order], counts)
which, _ = all_to_all.all_to_all_v(t, choice[order], counts, counts_in)
out = np.empty_like(rows)
for e in set(which.tolist()):
    out[which == e] = expert(e, rows[which == e])
back, _ = all_to_all.all_to_all_v(t, out, counts_in, counts)
y = np.zeros_like(x)
y[order] = gate[order, None] * back
return y
