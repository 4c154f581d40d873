# right: what must be waited for, as lists that may be empty
coming = []
for i in range(len(self.weights) - 1, -1, -1):
    begun = self.updated[i]
    up = [] if begun is None else [self.send_up(i, [begun])]
    self.updated[i] = self.update(i, [self.down[i], *up])
    coming += up
self.lanes.wait(coming)
