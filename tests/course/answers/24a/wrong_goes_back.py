# wrong: the watermark is computed anew each time, and goes back with old records
last, idle, wait, early, done, out = [-math.inf] * partitions, set(), {}, {}, set(), []
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
    mark = min(awake) - slack if awake else -math.inf
    for key in sorted(wait):
        if wait[key] + window < mark:
            wait.pop(key)
            done.add(key)
            out.append((n, key, 0))
return out
