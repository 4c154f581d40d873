# wrong: the micro-batch that came last goes back first, as on a stack
ahead = min(p - s - 1, m)
parts, held = [("F", i) for i in range(ahead)], list(range(ahead))
for i in range(ahead, m):
    parts.append(("F", i))
    held.append(i)
    parts.append(("B", held.pop()))
while held:
    parts.append(("B", held.pop()))
return parts
