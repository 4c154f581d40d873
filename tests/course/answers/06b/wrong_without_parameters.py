# wrong: only the gradient of x, none for the block's parameters
now = self.generator.get_state()
self.generator.set_state(self.place)
x = minidl.Tensor(x, requires_grad=True)
y = self.block(x)
self.generator.set_state(now)
return (*minidl.grad([y], [x], [gy]), *(None for _ in self.leaves))
