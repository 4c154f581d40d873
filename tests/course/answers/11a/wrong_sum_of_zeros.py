# wrong: an all-reduce of an array that is 0 but for the own share: twice the bytes
flat[...] = 0
self.share(flat)[...] = self.own
ring_blocks.all_reduce(self.t, flat)
