# right: first all copies up, then all updates
order = tuple(reversed(range(len(self.weights))))
up = {i: self.send_up(i, [self.updated[i]]) for i in order if self.updated[i] is not None}
for i in order:
    after = [job for job in (self.down[i], up.get(i)) if job is not None]
    self.updated[i] = self.update(i, after)
self.lanes.wait([up[i] for i in order if i in up])
