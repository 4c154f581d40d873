# wrong: waits until all layers have arrived: nothing overlaps
if len(self.arrived) == len(self.layers):
    for bucket in self.buckets:
        self.jobs.append(self.background.submit(self.reduce, bucket))
