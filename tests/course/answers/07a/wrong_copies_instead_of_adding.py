# wrong: what comes replaces the own chunk; nothing is added
for s in range(p - 1):
    mine = chunk[(t.rank - s - 1) % p]
    mine[...] = t.sendrecv(chunk[(t.rank - s) % p], right, scratch[: len(mine)], left)
