# wrong: the generator is put back before the block runs, so the numbers are not the first run's
now = self.generator.get_state()
self.generator.set_state(self.place)
self.generator.set_state(now)
x = minidl.Tensor(x, requires_grad=True)
y = self.block(x)
self.generator.set_state(now)
return minidl.grad([y], [x, *self.leaves], [gy])
