# right: a for loop over those that have not started
for bucket in self.buckets[len(self.jobs):]:
    if all(layer in self.arrived for layer in bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
    else:
        break
