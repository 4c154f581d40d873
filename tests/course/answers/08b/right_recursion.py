# right: one start, then the same again
def start():
    k = len(self.jobs)
    if k < len(self.buckets) and not set(self.buckets[k]) - self.arrived:
        self.jobs.append(self.background.submit(self.reduce, self.buckets[k]))
        start()

start()
