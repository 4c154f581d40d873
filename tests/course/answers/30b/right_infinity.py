# right: a pair without a rank has the rank infinity
ids = list(word)
while len(ids) > 1:
    of_pairs = [ranks.get(pair, float("inf")) for pair in zip(ids, ids[1:])]
    i = of_pairs.index(min(of_pairs))
    if of_pairs[i] == float("inf"):
        break
    ids = [*ids[:i], 256 + of_pairs[i], *ids[i + 2:]]
return ids
