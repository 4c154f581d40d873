# wrong: odd ranks send before they receive, too: the same order on all ranks
if t.rank % 2 == 0:
    t.send(out, right)
    t.recv(into, left)
if t.rank % 2 == 1:
    t.send(out, right)
    t.recv(into, left)
