# wrong: the chunk numbers begin one later, so rank r ends with the sum of chunk r+2
for s in range(p - 1):
    mine = chunk[(t.rank - s) % p]
    mine += t.sendrecv(chunk[(t.rank - s + 1) % p], right, scratch[: len(mine)], left)
