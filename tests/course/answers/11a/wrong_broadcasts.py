# wrong: p broadcasts: right elements, more bytes than a ring all-gather's
from minidl.comm import tree

self.share(flat)[...] = self.own
for r in range(self.t.size):
    tree.broadcast(self.t, flat[self.bounds[r] : self.bounds[r + 1]], r)
