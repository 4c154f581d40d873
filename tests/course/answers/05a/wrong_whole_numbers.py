# wrong: // 2 turns a scale of 1 into 0
if overflow:
    self.scale = self.scale // 2
    self.skipped += 1
    self.good_steps = 0
else:
    self.good_steps += 1
    if self.good_steps == self.interval:
        self.scale *= 2
        self.good_steps = 0
