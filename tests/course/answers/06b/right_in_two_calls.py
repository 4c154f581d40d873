# right: the gradients of x and of the parameters named one by one
x = minidl.Tensor(x, requires_grad=True)
state, _ = self.generator.get_state(), self.generator.set_state(self.place)
y = self.block(x)
self.generator.set_state(state)
gx, *gs = minidl.grad([y], [x, *self.leaves], [gy])
return (gx, *gs)
