# right: arrays, and the best gap kept on the way
n, first, last = map(np.array, zip(*lifetimes))
found = np.full(len(n), -1)
for i in np.argsort(-n, kind="stable"):
    near = np.flatnonzero((found >= 0) & (first <= last[i]) & (last >= first[i]))
    near = near[np.argsort(found[near], kind="stable")]
    top, best = 0, None
    for j in near:
        gap = found[j] - top
        if gap >= n[i] and (best is None or gap < best[0]):
            best = gap, top
        top = max(top, found[j] + n[j])
    found[i] = top if best is None else best[1]
return found.tolist()
