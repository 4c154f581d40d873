# wrong: the rank itself as the token
ids = list(word)
while True:
    found = [(ranks[p], i) for i, p in enumerate(zip(ids, ids[1:])) if p in ranks]
    if not found:
        return ids
    rank, i = min(found)
    ids = ids[:i] + [rank] + ids[i + 2:]
