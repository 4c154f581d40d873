# right: counts what has been done, and asks each time what may come next
done = {"F": 0, "B": 0}
parts = []
while done["B"] < m:
    held = done["F"] - done["B"]
    if done["F"] < m and held < p - s:
        kind = "F"
    else:
        kind = "B"
    parts.append((kind, done[kind]))
    done[kind] += 1
return parts
