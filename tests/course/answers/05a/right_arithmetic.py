# right: factors looked up in place of branches
self.skipped += int(overflow)
self.good_steps = 0 if overflow else self.good_steps + 1
grown = self.good_steps >= self.interval
self.scale *= 0.5 if overflow else 2 if grown else 1
if grown:
    self.good_steps = 0
