# wrong: good steps before an overflow still count: they must be in a row
if overflow:
    self.scale /= 2
    self.skipped += 1
else:
    self.good_steps += 1
    if self.good_steps == self.interval:
        self.scale *= 2
        self.good_steps = 0
