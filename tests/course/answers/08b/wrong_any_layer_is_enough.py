# wrong: starts a bucket when its first layer has arrived: the others' gradients are old
while len(self.jobs) < len(self.buckets):
    bucket = self.buckets[len(self.jobs)]
    if not self.arrived.intersection(bucket):
        break
    self.jobs.append(self.background.submit(self.reduce, bucket))
