"""Selection: every element of the result is taken from one of the inputs, which gets its gradient.

    maximum([1 5], [4 2]) = [4 5]        gradients: [0 gy1] and [gy0 0]

Test: tests/ops/test_select.py
"""

from minidl import backend
from minidl.function import Function
from minidl.ops.elementwise import binary
from minidl.ops.masks import select
from minidl.tensor import Tensor, wrapped


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
        return select(gy, ~loser_a), select(gy, ~loser_b)


class Minimum(Maximum):
    """The smaller of a and b; the rest as for Maximum."""
    larger = False


class Clamp(Function):
    """x between two bounds, numbers or arrays; where min is above max, the result is max.

    The gradient goes to x where it is inside, bounds included, else to the bound that replaced it.
    Where the bounds are equal, min gets none, as in PyTorch. Saves a mask for each wanted one."""

    def forward(self, x, min, max):
        bounds = [b for b in (min, max) if b is not None]
        if not bounds:
            raise TypeError("clamp: wants min, max or both, a number or a tensor each; got neither")
        dtype = backend.result_dtype([x, *bounds])
        x, min, max = (a.astype(dtype, copy=False) if hasattr(a, "astype") else a
                       for a in (x, min, max))
        inside = below = above = None
        if self.needs[0]:
            inside = True if min is None else x >= min
            inside = inside if max is None else inside & (x <= max)
        if self.needs[1]:
            below = x < min if max is None else (x < min) & (min < max)
        if self.needs[2]:
            above = x > max if min is None else (x > max) | (max < min)
        self.save(inside, below, above)
        return self.xp.clip(x, min, max)

    def backward(self, gy):
        return tuple(None if mask is None else select(gy, mask) for mask in self.saved)


class Where(Function):
    """a where the condition is True, b elsewhere."""
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


maximum, minimum = binary("maximum", Maximum), binary("minimum", Minimum)


def clamp(input, min=None, max=None):
    """min(max(input, `min`), `max`); a bound is a number, a tensor that broadcasts, or None."""
    return Clamp.apply(input, min, max)


def where(condition, input=None, other=None):
    """input where the bool tensor `condition` is True, other elsewhere; all three broadcast. Of the
    condition alone: the indices where it is True, a tensor for each dimension."""
    if input is None and other is None:
        return tuple(Tensor(i) for i in wrapped(condition).array.nonzero())
    return Where.apply(condition, input, other)


def masked_fill(input, mask, value):
    """The number or 0-d tensor `value` where `mask` is True, else input; in the input's dtype."""
    value = value.to(input.dtype) if isinstance(value, Tensor) else input.dtype.type(value)
    return Where.apply(mask, value, input)
