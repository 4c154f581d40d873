# wrong: the shift goes to the left
if t.rank % 2 == 0:
    t.send(out, left)
    t.recv(into, right)
else:
    t.recv(into, right)
    t.send(out, left)
