# right: all pairs of chunk numbers made first, then one loop over them
pairs = [((t.rank - s) % p, (t.rank - s - 1) % p) for s in range(p - 1)]
for outgoing, incoming in pairs:
    n = chunk[incoming].shape[0]
    scratch[:n] = t.sendrecv(chunk[outgoing], right, scratch[:n], left)
    chunk[incoming] += scratch[:n]
