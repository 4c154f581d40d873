# right: takewhile over the rest
import itertools

waiting = list(self.buckets[len(self.jobs):])
full = itertools.takewhile(lambda bucket: set(bucket) <= self.arrived, waiting)
self.jobs += [self.background.submit(self.reduce, bucket) for bucket in full]
