# wrong: an if in place of the loop: when two buckets become startable at once, one stays behind
if len(self.jobs) < len(self.buckets):
    bucket = self.buckets[len(self.jobs)]
    if self.arrived.issuperset(bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
