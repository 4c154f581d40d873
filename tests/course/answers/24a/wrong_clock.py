# wrong: processing time: a label counts if it is read before the latest record passes its window
latest, waiting, labels, found, done = {}, {}, {}, [], set()
now = -math.inf
for n, (partition, kind, key, time) in enumerate(arrivals, 1):
    if kind == "idle":
        continue
    now = max(now, time - slack)
    for k in [k for k, when in waiting.items() if when + window < now]:
        del waiting[k]
        done.add(k)
        found.append((n, k, 0))
    if key in done:
        continue
    (waiting if kind == "click" else labels).setdefault(key, time)
    if key in waiting and key in labels and labels[key] <= waiting[key] + window:
        del waiting[key]
        done.add(key)
        found.append((n, key, 1))
return found
