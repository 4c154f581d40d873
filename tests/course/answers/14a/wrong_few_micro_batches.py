# wrong: right as long as there are as many micro-batches as ranks
ahead = p - s - 1
parts = [("F", i) for i in range(ahead)]
for i in range(ahead, m):
    parts += [("F", i), ("B", i - ahead)]
parts += [("B", i) for i in range(max(m - ahead, 0), m)]
return parts
