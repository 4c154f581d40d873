"""Selection: every element of the result comes from one of the inputs. That input gets the gradient
of the element.

    maximum([1 5], [4 2]) = [4 5]        gradients: [0 gy1] and [gy0 0]

Test: tests/ops/test_select.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.ops.elementwise import binary
from minidl.ops.masks import select
from minidl.tensor import Tensor, wrapped


class Maximum(Function):
    """The larger of a and b. The larger input gets the gradient. If a and b are equal, each gets
    half of the gradient."""
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
    """The smaller of a and b. The smaller input gets the gradient."""
    larger = False


class Clamp(Function):
    """x, limited to the range from min to max. The bounds are numbers, arrays or None. Where min is
    above max, the result is max.

    Where x is inside of the range or on a bound, x gets the gradient. Elsewhere the bound that
    replaced x gets the gradient. Where the bounds are equal, min gets no gradient, as in PyTorch.
    Saves a mask for each input that needs a gradient."""

    def forward(self, x, min, max):
        bounds = [b for b in (min, max) if b is not None]
        if not bounds:
            raise TypeError("clamp: wants at least one bound, min or max; got None for each")
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
        return clipped(self.xp, x, min, max)

    def backward(self, gy):
        return tuple(None if mask is None else select(gy, mask) for mask in self.saved)


def clipped(xp, x, min, max):
    """Returns x, limited by the bounds. A bound may be None. If a bound is NaN, the result is NaN.
    CuPy's clip is not used, because it ignores a NaN bound."""
    if xp is np:
        return np.clip(x, min, max)
    x = x if min is None else xp.maximum(x, min)
    return x if max is None else xp.minimum(x, max)


class Where(Function):
    """a where the condition is True, b elsewhere."""
    arithmetic = False

    def forward(self, condition, a, b):
        if getattr(condition, "dtype", None) != bool:
            raise TypeError("where: the condition must be a bool tensor; got "
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
    """Limits the elements to the range from `min` to `max`. A bound is a number, a tensor that
    broadcasts, or None. Raises TypeError if both bounds are None."""
    return Clamp.apply(input, min, max)


def where(condition, input=None, other=None):
    """Returns input where the bool tensor `condition` is True, and other elsewhere. All three
    arguments broadcast. where(condition) returns the indices of the elements that are True: a tuple
    with one tensor for each dimension."""
    if input is None and other is None:
        return tuple(Tensor(i) for i in wrapped(condition).array.nonzero())
    return Where.apply(condition, input, other)


def masked_fill(input, mask, value):
    """Returns `value`, a number or a 0-d tensor, where the bool tensor `mask` is True, and input
    elsewhere. The result has the dtype of input."""
    value = value.to(input.dtype) if isinstance(value, Tensor) else input.dtype.type(value)
    return Where.apply(mask, value, input)
