# right: latest times in an array, idle ones masked
latest, is_idle = np.full(partitions, -np.inf), np.zeros(partitions, bool)
clicks, labels, given, out, mark = {}, {}, {}, [], -np.inf
for n, (p, kind, key, time) in enumerate(arrivals, 1):
    is_idle[p] = kind == "idle"
    if kind != "idle":
        latest[p] = max(latest[p], time)
        if kind == "click":
            clicks.setdefault(key, time)
        else:
            labels.setdefault(key, time)
    if not is_idle.all():
        mark = max(mark, latest[~is_idle].min() - slack)
    for key, time in clicks.items():
        if key in given:
            continue
        if key in labels and labels[key] - time <= window:
            given[key] = 1
        elif time + window < mark:
            given[key] = 0
        else:
            continue
        out.append((n, key, given[key]))
return out
