# wrong: only rank 0 is different: no hang, but p messages one after the other
if t.rank == 0:
    t.recv(into, left)
    t.send(out, right)
else:
    t.send(out, right)
    t.recv(into, left)
