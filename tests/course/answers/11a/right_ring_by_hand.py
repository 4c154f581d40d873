# right: the ring written out, block by block
t, b, p = self.t, self.bounds, self.t.size
blocks = [flat[b[r] : b[r + 1]] for r in range(p)]
blocks[t.rank][:] = self.own
for s in range(p - 1):
    out, into = blocks[(t.rank - s) % p], blocks[(t.rank - s - 1) % p]
    t.sendrecv(out, (t.rank + 1) % p, into, (t.rank - 1) % p)
