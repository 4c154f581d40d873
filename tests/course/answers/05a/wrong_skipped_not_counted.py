# wrong: self.skipped stays 0
if overflow:
    self.scale /= 2
    self.good_steps = 0
else:
    self.good_steps += 1
    if self.good_steps >= self.interval:
        self.scale, self.good_steps = self.scale * 2, 0
