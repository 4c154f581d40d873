# wrong: every stage warms up as the first one does
ahead = min(p - 1, m)
parts = [("F", i) for i in range(ahead)]
for i in range(m - ahead):
    parts += [("F", ahead + i), ("B", i)]
for i in range(m - ahead, m):
    parts.append(("B", i))
return parts
