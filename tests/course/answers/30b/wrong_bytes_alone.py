# wrong: pairs of bytes are joined, and new tokens never
ids = list(word)
for pair in sorted(ranks, key=ranks.get):
    if max(pair) < 256:
        i = 0
        while i + 1 < len(ids):
            if tuple(ids[i:i + 2]) == pair:
                ids[i:i + 2] = [256 + ranks[pair]]
            i += 1
return ids
