# right: send and receive by themselves, in an order that even and odd ranks cannot hang in
for s in range(p - 1):
    out, mine = chunk[(t.rank - s) % p], chunk[(t.rank - s - 1) % p]
    into = scratch[: len(mine)]
    if t.rank % 2 == 0:
        t.send(out, right)
        t.recv(into, left)
    else:
        t.recv(into, left)
        t.send(out, right)
    mine += into
