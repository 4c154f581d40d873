# wrong: a label whose click has not been read is thrown away
last, idle, wait, done, out, mark = [-math.inf] * partitions, set(), {}, set(), [], -math.inf
for n, (p, kind, key, time) in enumerate(arrivals, 1):
    if kind == "idle":
        idle.add(p)
    else:
        idle.discard(p)
        last[p] = max(last[p], time)
        if kind == "click" and key not in done:
            wait.setdefault(key, time)
        if kind == "label" and key in wait and time <= wait[key] + window:
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
return out
