# right: one if with an else, and a modulo
if overflow:
    self.scale *= 0.5
    self.skipped += 1
    self.good_steps = 0
else:
    self.good_steps = (self.good_steps + 1) % self.interval
    if self.good_steps == 0:
        self.scale *= 2.0
