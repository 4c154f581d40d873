# wrong: an array and not a list
ids = list(word)
while True:
    found = [(ranks[p], i) for i, p in enumerate(zip(ids, ids[1:])) if p in ranks]
    if not found:
        return np.array(ids)
    rank, i = min(found)
    ids[i:i + 2] = [256 + rank]
