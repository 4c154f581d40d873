# right: a running total, and the open bucket in the list from the start
buckets, held = [], cap
for layer in range(len(sizes) - 1, -1, -1):
    if held >= cap:
        buckets.append([])
        held = 0
    buckets[-1].append(layer)
    held += sizes[layer]
return buckets
