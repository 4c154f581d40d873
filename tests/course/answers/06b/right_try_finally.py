# right: the generator is put back in a finally
inside = minidl.Tensor(x, requires_grad=True)
before = self.generator.get_state()
try:
    self.generator.set_state(self.place)
    y = self.block(inside)
    gradients = minidl.grad([y], [inside] + list(self.leaves), [gy])
finally:
    self.generator.set_state(before)
return tuple(gradients)
