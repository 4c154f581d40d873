# wrong: doubles after every good step once there have been enough
if overflow:
    self.scale /= 2
    self.skipped += 1
    self.good_steps = 0
else:
    self.good_steps += 1
    if self.good_steps >= self.interval:
        self.scale *= 2
