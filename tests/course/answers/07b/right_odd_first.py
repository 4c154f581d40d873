# right: the odd ranks send first
if t.rank % 2:
    t.send(out, right)
    t.recv(into, left)
else:
    t.recv(into, left)
    t.send(out, right)
