# wrong: the update does not wait for the copy up, which may then read weights half new
coming = []
for i in reversed(range(len(self.weights))):
    if self.updated[i] is not None:
        coming.append(self.send_up(i, [self.updated[i]]))
    self.updated[i] = self.update(i, [self.down[i]])
self.lanes.wait(coming)
