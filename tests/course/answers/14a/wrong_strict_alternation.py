# wrong: one forward, one backward from the start, as if every stage were the last one
parts = []
for i in range(m):
    parts.append(("F", i))
    parts.append(("B", i))
return parts
