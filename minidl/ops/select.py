"""Selection: every element of the result is taken from one of the inputs, which gets its gradient.

    maximum([1 5], [4 2]) = [4 5]        gradients: [0 gy1] and [gy0 0]

Test: tests/ops/test_select.py
"""

from minidl import backend
from minidl.function import Function
from minidl.tensor import Tensor


class Maximum(Function):
    """The larger of a and b, which gets the gradient; equal ones share it half and half."""

    promotes = "same"
    larger = True

    def forward(self, a, b):
        self.save(a, b)
        return (self.xp.maximum if self.larger else self.xp.minimum)(a, b)

    def backward(self, gy):
        a, b = self.saved
        loser_a, loser_b = (a < b, a > b) if self.larger else (a > b, a < b)
        gy = self.xp.where(a == b, gy * 0.5, gy)
        return gy * ~loser_a, gy * ~loser_b


class Minimum(Maximum):
    """The smaller of a and b; the rest as for Maximum."""

    larger = False


class Clamp(Function):
    """x between two numbers. The gradient passes where x is inside, bounds included."""

    def forward(self, x, min=None, max=None):
        bounds = [b for b in (min, max) if b is not None]
        if not bounds or any(isinstance(b, Tensor) or hasattr(b, "shape") for b in bounds):
            raise TypeError("clamp: wants a number for min, max or both; for tensors use maximum "
                            "and minimum")
        x = x.astype(backend.result_dtype([x, *bounds]), copy=False)
        if self.needs[0]:
            inside = True if min is None else x >= min
            self.save(inside if max is None else inside & (x <= max))
        return self.xp.clip(x, min, max)

    def backward(self, gy):
        (inside,) = self.saved
        return gy * inside


class Where(Function):
    """a where the condition holds, b elsewhere."""

    arithmetic = False

    def forward(self, condition, a, b):
        if getattr(condition, "dtype", None) != bool:
            raise TypeError("where: the condition wants to be a bool tensor, got "
                            f"{getattr(condition, 'dtype', type(condition).__name__)}")
        dtype = backend.result_dtype([a, b])
        self.save(condition)
        return self.xp.where(condition, self.xp.asarray(a, dtype), self.xp.asarray(b, dtype))

    def backward(self, gy):
        (condition,) = self.saved
        return (None, self.xp.where(condition, gy, 0) if self.needs[1] else None,
                self.xp.where(condition, 0, gy) if self.needs[2] else None)


def maximum(input, other):
    return Maximum.apply(input, other)


def minimum(input, other):
    return Minimum.apply(input, other)


def clamp(input, min=None, max=None):
    return Clamp.apply(input, min=min, max=max)


def where(condition, input, other):
    """input where the bool tensor `condition` holds, other elsewhere; all three broadcast."""
    return Where.apply(condition, input, other)


def masked_fill(input, mask, value):
    """The number or 0-d tensor `value` where the bool tensor `mask` holds, else input; the dtype
    is the input's."""
    to_dtype = input.dtype.type
    return Where.apply(mask, value.to(input.dtype) if isinstance(value, Tensor)
                       else to_dtype(value), input)
