# right: the scale by its exponent, with math.ldexp
if bool(overflow):
    self.skipped, self.good_steps = self.skipped + 1, 0
    self.scale = math.ldexp(self.scale, -1)
    return None
self.good_steps += 1
if not self.good_steps < self.interval:
    self.good_steps -= self.interval
    self.scale = math.ldexp(self.scale, 1)
