# right: joins one pair, and calls itself for the rest
def go_on(ids):
    best = None
    for i in range(len(ids) - 1):
        rank = ranks.get((ids[i], ids[i + 1]))
        if rank is not None and (best is None or rank < best[0]):
            best = rank, i
    if best is None:
        return ids
    rank, i = best
    return go_on(ids[:i] + [256 + rank] + ids[i + 2:])


return go_on([*word])
