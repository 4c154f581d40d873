# wrong: the first gap that is large enough
seen = set()
for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i][0]):
    size, first, last = lifetimes[i]
    near = sorted((offsets[j], lifetimes[j][0]) for j in range(len(lifetimes)) if j in seen
                  and lifetimes[j][1] <= last and lifetimes[j][2] >= first)
    top, best = 0, None
    for at, n in near:
        if at - top >= size and best is None:
            best = at - top, top
        top = max(top, at + n)
    offsets[i] = best[1] if best else top
    seen.add(i)
