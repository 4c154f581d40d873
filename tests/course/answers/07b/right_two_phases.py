# right: two phases, from even to odd ranks, then from odd to even
for phase in (0, 1):
    if t.rank % 2 == phase:
        t.send(out, right)
    else:
        t.recv(into, left)
