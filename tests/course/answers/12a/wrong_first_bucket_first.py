# wrong: the first bucket first: its gradient comes last, and the others wait behind it
coming = []
for i in range(len(self.weights)):
    after = [self.down[i]]
    if self.updated[i] is not None:
        coming.append(self.send_up(i, [self.updated[i]]))
        after.append(coming[-1])
    self.updated[i] = self.update(i, after)
self.lanes.wait(coming)
