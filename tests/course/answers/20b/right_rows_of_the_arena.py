# right: the taken bytes as intervals that are merged first
rest = list(enumerate(lifetimes))
rest.sort(key=lambda pair: pair[1][0], reverse=True)
there = []  # (offset, size, first, last)
for i, (size, first, last) in rest:
    merged = [[0, 0]]
    for at, n, a, b in sorted(there):
        if last < a or b < first:
            continue
        if at <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], at + n)
        else:
            merged.append([at, at + n])
    holes = [(right[0] - left[1], left[1]) for left, right in zip(merged, merged[1:])]
    holes = [hole for hole in holes if hole[0] >= size]
    offsets[i] = min(holes, default=(0, merged[-1][1]))[1]
    there.append((offsets[i], size, first, last))
