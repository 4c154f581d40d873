"""Elementwise ops: y[i] depends on x[i] alone, so backward is gy times a local derivative.

Inputs broadcast as in NumPy; backward may return the broadcast gradient, the walk sums it back
to the input's shape. Integers become float32 where a float is needed, as in PyTorch.

Test: tests/ops/test_elementwise.py   Tutorial: tutorials/01_autograd.py
"""

from minidl.tensor import Function


class Add(Function):
    """a + b."""

    promotes = "same"

    def forward(self, a, b):
        return a + b

    def backward(self, gy):
        return gy, gy


class Mul(Function):
    """a * b. Saves the factor that the other one's gradient needs."""

    promotes = "same"

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        return a * b

    def backward(self, gy):
        a, b = self.saved
        return (gy * b if self.needs[0] else None), (gy * a if self.needs[1] else None)


class Exp(Function):
    """y = e^x. Saves y: dy/dx = y."""

    promotes = "float"

    def forward(self, x):
        y = self.xp.exp(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy * y


class Tanh(Function):
    """y = tanh(x). Saves y alone: dy/dx = 1 - y*y."""

    promotes = "float"

    def forward(self, x):
        y = self.xp.tanh(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy * (1 - y * y)


def add(input, other, *, alpha=1):
    """input + alpha * other."""
    return Add.apply(input, other if alpha == 1 else mul(other, alpha))


def mul(input, other):
    return Mul.apply(input, other)


def exp(input):
    return Exp.apply(input)


def tanh(input):
    return Tanh.apply(input)
