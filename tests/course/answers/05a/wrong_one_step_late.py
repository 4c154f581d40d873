# wrong: doubles after interval + 1 good steps
if overflow:
    self.scale *= 0.5
    self.skipped += 1
    self.good_steps = 0
elif self.good_steps == self.interval:
    self.scale *= 2
    self.good_steps = 0
else:
    self.good_steps += 1
