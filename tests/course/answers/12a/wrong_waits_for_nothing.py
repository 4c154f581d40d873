# wrong: the device goes on before the weights are there
for i in reversed(range(len(self.weights))):
    after = [self.down[i]]
    if self.updated[i] is not None:
        after.append(self.send_up(i, [self.updated[i]]))
    self.updated[i] = self.update(i, after)
