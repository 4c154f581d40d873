# wrong: from the left, whichever pair has a rank
ids, i = list(word), 0
while i + 1 < len(ids):
    pair = ids[i], ids[i + 1]
    if pair in ranks:
        ids[i:i + 2] = [256 + ranks[pair]]
        i = 0
    else:
        i += 1
return ids
