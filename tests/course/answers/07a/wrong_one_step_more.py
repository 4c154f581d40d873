# wrong: p steps: one part is added twice
for s in range(p):
    mine = chunk[(t.rank - s - 1) % p]
    mine += t.sendrecv(chunk[(t.rank - s) % p], right, scratch[: len(mine)], left)
