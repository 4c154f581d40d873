# wrong: a bucket is started again with every layer that arrives after it is full
for bucket in self.buckets:
    if self.arrived.issuperset(bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
    else:
        break
