# wrong: waits for this step's update: nothing is delayed
coming = []
for i in reversed(range(len(self.weights))):
    self.updated[i] = self.update(i, [self.down[i]])
    coming.append(self.send_up(i, [self.updated[i]]))
self.lanes.wait(coming)
