# right: one dictionary of states, and the watermark as a function
seen, awake, state, mark = {p: -math.inf for p in range(partitions)}, set(range(partitions)), {}, [-math.inf]


def passed():
    times = [seen[p] for p in awake]
    if times:
        mark.append(max(mark[-1], min(times) - slack))
    return mark[-1]


result = []
for i, (p, kind, key, time) in enumerate(arrivals):
    if kind == "idle":
        awake.discard(p)
    else:
        awake.add(p)
        seen[p] = max(seen[p], time)
        s = state.setdefault(key, {})
        s.setdefault(kind, time)
        if "given" not in s and "click" in s and s.get("label", math.inf) <= s["click"] + window:
            s["given"] = 1
            result.append((i + 1, key, 1))
    now = passed()
    for key, s in state.items():
        if "given" not in s and "click" in s and s["click"] + window < now:
            s["given"] = 0
            result.append((i + 1, key, 0))
return result
