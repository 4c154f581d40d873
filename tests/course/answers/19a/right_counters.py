# right: running totals, span by span
tiny, wide, all_s, ratios = 0, 0.0, 0.0, []
n_steps = min(len(rank) for rank in ranks)
for i in range(n_steps):
    sizes = []
    for rank in ranks:
        size = 0
        for s in rank[i]:
            if s["kind"] == "collective":
                tiny += 0 < s["bytes"] < 65
            elif s["kind"] == "forward" or s["kind"] == "backward":
                all_s += s["s"]
                wide += s["s"] if s["dtype"] == "float64" else 0
                size += s["bytes"] if s["kind"] == "forward" else 0
        sizes.append(size)
    ratios.append(max(sizes) / min(sizes))
names = []
if tiny / (n_steps * len(ranks)) > 1:
    names.append("synchronisation")
if sum(ratios) / n_steps > 1.25:
    names.append("loader")
if all_s and wide / all_s > 0.05:
    names.append("float64")
return names
