# right: the ends of windows in a heap
import heapq

last, idle, ends, out, mark = [-math.inf] * partitions, set(), [], [], -math.inf
times, given = {"click": {}, "label": {}}, set()
for n, (p, kind, key, time) in enumerate(arrivals, 1):
    if kind == "idle":
        idle.add(p)
    else:
        idle -= {p}
        last[p] = max(last[p], time)
        if kind == "click" and key not in times["click"]:
            heapq.heappush(ends, (time + window, key))
        times[kind].setdefault(key, time)
        click, label = (times[k].get(key) for k in ("click", "label"))
        if key not in given and None not in (click, label) and label <= click + window:
            given.add(key)
            out.append((n, key, 1))
    awake = [x for i, x in enumerate(last) if i not in idle]
    if awake:
        mark = max(mark, min(awake) - slack)
    while ends and ends[0][0] < mark:
        _, key = heapq.heappop(ends)
        if key not in given:
            given.add(key)
            out.append((n, key, 0))
return out
