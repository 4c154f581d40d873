# right: every place where a gap can begin is tried
done = {}


def length(start, i):
    """Of the gap that begins at start, for value i: None if start is taken, inf above all."""
    near = [(done[j], done[j] + lifetimes[j][0]) for j in done if alive_together(i, j)]
    if any(a <= start < b for a, b in near):
        return None
    return min((a for a, _ in near if a >= start), default=float("inf")) - start


def alive_together(i, j):
    return max(lifetimes[i][1], lifetimes[j][1]) <= min(lifetimes[i][2], lifetimes[j][2])


for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i][0], i)):
    starts = {0} | {done[j] + lifetimes[j][0] for j in done if alive_together(i, j)}
    fits = [(length(s, i), s) for s in starts if (length(s, i) or 0) >= lifetimes[i][0]]
    done[i] = min(fits)[1]
return [done[i] for i in range(len(lifetimes))]
