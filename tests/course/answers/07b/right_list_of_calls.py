# right: two calls in a list, turned round on odd ranks
calls = [lambda: t.send(out, right), lambda: t.recv(into, left)]
for call in calls if t.rank % 2 == 0 else reversed(calls):
    call()
