# wrong: p - s forwards alone, and then the pair adds one more
ahead = min(p - s, m)
parts = [("F", i) for i in range(ahead)]
for i in range(ahead, m):
    parts.append(("F", i))
    parts.append(("B", i - ahead))
for i in range(m - ahead, m):
    parts.append(("B", i))
return parts
