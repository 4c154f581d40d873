# wrong: waits for the all-reduce at once, so backward stands still meanwhile
while len(self.jobs) < len(self.buckets):
    bucket = self.buckets[len(self.jobs)]
    if not self.arrived.issuperset(bucket):
        break
    self.jobs.append(self.background.submit(self.reduce, bucket))
    self.jobs[-1].wait()
