# wrong: whichever bucket is full starts: ranks may start them in different orders
started = getattr(self, "started", set()) if self.jobs else set()
for k, bucket in enumerate(self.buckets):
    if k not in started and self.arrived.issuperset(bucket):
        self.jobs.append(self.background.submit(self.reduce, bucket))
        started.add(k)
self.started = started
