# wrong: what waits at the end is given as 0
last, idle, wait, early, done, out, mark = [-math.inf] * partitions, set(), {}, {}, set(), [], -math.inf
for n, (p, kind, key, time) in enumerate(arrivals, 1):
    if kind == "idle":
        idle.add(p)
    else:
        idle.discard(p)
        last[p] = max(last[p], time)
        if key not in done:
            (wait if kind == "click" else early).setdefault(key, time)
        if key in wait and key in early and early[key] <= wait[key] + window:
            wait.pop(key)
            done.add(key)
            out.append((n, key, 1))
    awake = [x for i, x in enumerate(last) if i not in idle]
    if awake:
        mark = max(mark, min(awake) - slack)
    for key in sorted(wait):
        if wait[key] + window < mark:
            wait.pop(key)
            done.add(key)
            out.append((n, key, 0))
return out + [(len(arrivals), key, 0) for key in wait]
