# wrong: all receive first: nobody ever sends
t.recv(into, left)
t.send(out, right)
