# right: a small context manager for the generator
from contextlib import contextmanager

@contextmanager
def replayed(generator, place):
    now = generator.get_state()
    generator.set_state(place)
    yield
    generator.set_state(now)

inputs = [minidl.Tensor(x, requires_grad=True), *self.leaves]
with replayed(self.generator, self.place):
    outputs = [self.block(inputs[0])]
return tuple(minidl.grad(outputs, inputs, [gy]))
