# wrong: all send first: large messages wait for their receive, for ever
t.send(out, right)
t.recv(into, left)
