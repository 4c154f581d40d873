# wrong: the device waits for the new updates, too
coming = []
for i in reversed(range(len(self.weights))):
    after = [self.down[i]]
    if self.updated[i] is not None:
        coming.append(self.send_up(i, [self.updated[i]]))
        after.append(coming[-1])
    self.updated[i] = self.update(i, after)
self.lanes.wait(coming + self.updated)
