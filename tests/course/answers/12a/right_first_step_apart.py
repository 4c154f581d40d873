# right: the first step by itself
buckets = list(range(len(self.weights)))[::-1]
if self.updated[0] is None:
    for i in buckets:
        self.updated[i] = self.update(i, [self.down[i]])
    self.lanes.wait([])
    return
coming = {}
for i in buckets:
    coming[i] = self.send_up(i, [self.updated[i]])
    self.updated[i] = self.update(i, [self.down[i], coming[i]])
self.lanes.wait(list(coming.values()))
