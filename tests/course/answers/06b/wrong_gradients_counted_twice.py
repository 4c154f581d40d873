# wrong: y.backward() adds into the parameters' grad, and the same is returned to the outer walk
now = self.generator.get_state()
self.generator.set_state(self.place)
x = minidl.Tensor(x, requires_grad=True)
y = self.block(x)
self.generator.set_state(now)
y.backward(gy)
return (x.grad, *(p.grad.array.copy() for p in self.leaves))
