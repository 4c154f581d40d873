# wrong: idle partitions hold the watermark where they were
last, wait, early, done, out = [-math.inf] * partitions, {}, {}, set(), []
for n, (p, kind, key, time) in enumerate(arrivals, 1):
    if kind != "idle":
        last[p] = max(last[p], time)
        if key not in done:
            (wait if kind == "click" else early).setdefault(key, time)
        if key in wait and key in early and early[key] <= wait[key] + window:
            wait.pop(key)
            done.add(key)
            out.append((n, key, 1))
    for key in sorted(wait):
        if wait[key] + window < min(last) - slack:
            wait.pop(key)
            done.add(key)
            out.append((n, key, 0))
return out
