# wrong: the pair that was learned last
ids = list(word)
while True:
    found = [(-ranks[p], i) for i, p in enumerate(zip(ids, ids[1:])) if p in ranks]
    if not found:
        return ids
    rank, i = min(found)
    ids[i:i + 2] = [256 - rank]
