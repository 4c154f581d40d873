# right: one pass for each rank, from the first learned pair on
ids = list(word)
for pair, rank in sorted(ranks.items(), key=lambda item: item[1]):
    i = 0
    while i + 1 < len(ids):
        if (ids[i], ids[i + 1]) == pair:
            ids[i:i + 2] = [256 + rank]
        i += 1
return ids
