# wrong: p-2 steps: the last part is missing
for s in range(p - 2):
    mine = chunk[(t.rank - s - 1) % p]
    mine += t.sendrecv(chunk[(t.rank - s) % p], right, scratch[: len(mine)], left)
