# wrong: dropped tokens are sent like all others
order = np.argsort(choice, kind="stable")
counts = np.bincount(choice // (n_experts // t.size), minlength=t.size)
rows, counts_in = all_to_all.all_to_all_v(t, x[order], counts)
which, _ = all_to_all.all_to_all_v(t, choice[order], counts, counts_in)
out = np.empty_like(rows)
for e in set(which.tolist()):
    out[which == e] = expert(e, rows[which == e])
y = np.zeros_like(x)
y[order] = gate[order, None] * all_to_all.all_to_all_v(t, out, counts_in, counts)[0]
return y
