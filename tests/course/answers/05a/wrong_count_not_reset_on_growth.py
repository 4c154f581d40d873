# wrong: after the first doubling the count goes on, and never equals the interval again
if overflow:
    self.scale /= 2
    self.skipped += 1
    self.good_steps = 0
    return
self.good_steps += 1
if self.good_steps == self.interval:
    self.scale *= 2
