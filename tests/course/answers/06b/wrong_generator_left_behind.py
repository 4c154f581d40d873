# wrong: the generator stays where the second run ended, and what others draw next changes
self.generator.set_state(self.place)
x = minidl.Tensor(x, requires_grad=True)
y = self.block(x)
return minidl.grad([y], [x, *self.leaves], [gy])
