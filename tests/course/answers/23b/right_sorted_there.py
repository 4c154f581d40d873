# right: sorted by rank only; the rank that has the experts sorts by expert, and back
owner = choice // (n_experts // t.size)
mine = np.nonzero(kept)[0]
mine = mine[np.argsort(owner[mine], kind="stable")]
counts = [int((owner[mine] == r).sum()) for r in range(t.size)]
rows, arrived = all_to_all.all_to_all_v(t, x[mine], counts)
tags, _ = all_to_all.all_to_all_v(t, choice[mine], counts, arrived)
perm = np.argsort(tags, kind="stable")
done = np.empty_like(rows)
start = 0
while start < len(perm):
    e = tags[perm[start]]
    stop = start + int((tags == e).sum())
    done[perm[start:stop]] = expert(int(e), rows[perm[start:stop]])
    start = stop
returned, _ = all_to_all.all_to_all_v(t, done, arrived, counts)
y = np.zeros_like(x)
np.put_along_axis(y, np.repeat(mine[:, None], x.shape[1], 1), gate[mine, None] * returned, 0)
return y
