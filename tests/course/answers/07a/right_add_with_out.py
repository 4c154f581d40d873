# right: np.add with out=, indices kept in variables
send, receive = t.rank, (t.rank - 1) % p
for _ in range(p - 1):
    mine = chunk[receive]
    into = scratch[: mine.size]
    t.sendrecv(chunk[send], right, into, left)
    np.add(mine, into, out=mine)
    send, receive = receive, (receive - 1) % p
