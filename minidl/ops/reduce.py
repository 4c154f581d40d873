"""Reductions: many elements become one, so backward repeats the gradient for all these elements.

The plain form of a sum, and why its dtype matters: minidl/plain/floats.py. In this file, `dim` is
an int, a tuple, or None for all dimensions. A negative `dim` counts from the end. If `keepdim` is
True, a reduced dimension is kept, with size 1. fp16 is summed in fp32 (`backend.accumulate_dtype`),
integers in int64, as in PyTorch. The largest and the smallest element are in extreme.py.
Test: tests/ops/test_reduce.py
"""

import math

import numpy as np

from minidl import backend
from minidl.forward import op_name
from minidl.function import Function
from minidl.ops.dims import normalize_dims


class Reduction(Function):
    """The base class of reductions. It computes axes and shapes, and spreads the gradient to the
    shape of the input."""

    def over(self, x, dim, keepdim):
        """Returns (the axes of `dim`, the number of input elements for each element of the result).
        Stores in self the shapes that backward needs."""
        axes = normalize_dims(dim, x.ndim, op_name(type(self)))
        self.shape = x.shape
        self.kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        self.result = self.kept if keepdim else tuple(
            n for i, n in enumerate(x.shape) if i not in axes)
        return axes, math.prod(x.shape[i] for i in axes)

    def spread(self, gy):
        """Returns gy as a read-only view with the shape of x."""
        return self.xp.broadcast_to(gy.reshape(self.kept), self.shape)


def dtype_of_sum(x, dtype):
    """Returns the dtype of a sum or a product over x. This is `dtype` if given, int64 if x has
    integers or bools, and otherwise the dtype of x."""
    return np.dtype(dtype or (np.int64 if x.dtype.kind in "bui" else x.dtype))


class Sum(Reduction):
    """The sum over `dim`. Saves nothing: every element has the gradient of the sum."""
    precision = "black"

    def forward(self, x, dim=None, keepdim=False, dtype=None):
        axes, _ = self.over(x, dim, keepdim)
        out = dtype_of_sum(x, dtype)
        y = x.sum(axis=axes, keepdims=keepdim, dtype=backend.accumulate_dtype(out))
        return y.astype(out, copy=False)

    def backward(self, gy):
        return self.spread(gy)


class Mean(Reduction):
    """The sum over `dim`, divided by the number of elements. It is nan if there are no elements."""
    precision = "black"

    def forward(self, x, dim=None, keepdim=False, dtype=None):
        axes, self.n = self.over(x, dim, keepdim)
        out = np.dtype(dtype or x.dtype)
        if not backend.is_floating(out):
            raise TypeError(f"mean: wants a floating dtype, got {out}; use x.float().mean()")
        y = x.sum(axis=axes, keepdims=keepdim, dtype=backend.accumulate_dtype(out))
        return (y / self.n if self.n else y * np.nan).astype(out, copy=False)

    def backward(self, gy):
        return self.spread(gy / (self.n or 1))


class Var(Reduction):
    """y = sum((x - mean)^2) / (n - correction). Saves x - mean.

    If n - correction is 0 or less, the sum is divided by 0, as in PyTorch. The result is then inf,
    or nan if all elements are equal."""
    precision = "black"

    def forward(self, x, dim=None, keepdim=False, correction=1):
        if x.dtype.kind != "f":
            raise TypeError(f"{op_name(type(self))}: wants a floating dtype, got {x.dtype}")
        axes, n = self.over(x, dim, keepdim)
        dtype = backend.accumulate_dtype(x.dtype)
        mean = x.sum(axis=axes, keepdims=True, dtype=dtype) / (n or 1)
        centered = x - mean
        self.scale = 1 / (n - correction) if n > correction else np.inf
        squares = self.xp.square(centered).sum(axis=axes, keepdims=True)
        with np.errstate(invalid="ignore"):  # 0 times inf gives nan, without a warning
            y = squares * self.scale
        return self.finish(y.reshape(self.result), centered, x.dtype)

    def finish(self, var, centered, dtype):
        self.save(centered)
        return var.astype(dtype, copy=False)

    def backward(self, gy):
        (centered,) = self.saved
        with np.errstate(invalid="ignore"):
            return self.spread(gy * (2 * self.scale)) * centered


class Std(Var):
    """y = square root of Var. Where y is 0, the gradient is 0."""

    def finish(self, var, centered, dtype):
        y = self.xp.sqrt(var)
        self.save(centered, y)
        return y.astype(dtype, copy=False)

    def backward(self, gy):
        centered, y = self.saved
        gy = self.xp.where(y == 0, 0, gy / self.xp.where(y == 0, 1, y))
        with np.errstate(invalid="ignore"):
            return self.spread(gy * self.scale) * centered


class Prod(Reduction):
    """The product over one dim, or over all dims. The gradient of x[i] is the product of all other
    elements. It is computed as the product of all elements before x[i], times the product of all
    elements after x[i]. So no division is needed, and elements may be 0."""
    precision = "black"

    def forward(self, x, dim=None, keepdim=False, dtype=None):
        axes, _ = self.over(x, dim, keepdim)
        out = dtype_of_sum(x, dtype)
        self.dim = None if dim is None or not axes else axes[0]
        self.save(x)
        y = x.prod(axis=axes, keepdims=keepdim, dtype=backend.accumulate_dtype(out))
        return y.astype(out, copy=False)

    def backward(self, gy):
        (x,) = self.saved
        rows = x.reshape(-1) if self.dim is None else self.xp.moveaxis(x, self.dim, -1)
        before, after = self.xp.ones_like(rows), self.xp.ones_like(rows)
        before[..., 1:] = rows[..., :-1].cumprod(axis=-1)
        after[..., :-1] = rows[..., :0:-1].cumprod(axis=-1)[..., ::-1]
        others = before * after
        if self.dim is not None:
            others = self.xp.moveaxis(others, -1, self.dim)
        return self.spread(gy) * others.reshape(self.shape)


class Cumsum(Function):
    """y[i] = x[0] + ... + x[i] along `dim`. So gx[i] = gy[i] + ... + gy[n-1]."""
    precision = "black"

    def forward(self, x, dim, dtype=None):
        self.dim = (normalize_dims(dim, x.ndim, "cumsum") or (None,))[0]
        out = dtype_of_sum(x, dtype)
        y = self.xp.cumsum(x, axis=self.dim, dtype=backend.accumulate_dtype(out))
        return y.astype(out, copy=False).reshape(x.shape)

    def backward(self, gy):
        if self.dim is None:
            return gy
        flip, dtype = self.xp.flip, backend.accumulate_dtype(gy.dtype)
        return flip(self.xp.cumsum(flip(gy, self.dim), axis=self.dim, dtype=dtype), self.dim)


class Logsumexp(Reduction):
    """y = log(sum(e^x)) over `dim`. The maximum is subtracted first, so that e^x cannot
    overflow."""
    precision = "black"
    promotes = "float"

    def forward(self, x, dim, keepdim=False):
        xp = self.xp
        axes, n = self.over(x, dim, keepdim)
        largest = x.max(axis=axes, keepdims=True) if n else xp.full(self.kept, -np.inf, x.dtype)
        largest = xp.where(xp.isfinite(largest), largest, 0).astype(x.dtype, copy=False)
        dtype = backend.accumulate_dtype(x.dtype)
        total = xp.exp(x - largest).sum(axis=axes, keepdims=True, dtype=dtype)
        with np.errstate(divide="ignore"):  # if all elements are -inf, log(0) is -inf
            y = xp.log(total) + largest
        self.save(x, y)
        return y.reshape(self.result).astype(x.dtype, copy=False)

    def backward(self, gy):
        x, y = self.saved
        y = self.xp.where(self.xp.isneginf(y), 0, y)
        return self.spread(gy) * self.xp.exp(x - y)


class AnyAll(Function):
    """any: True if at least one element is not zero. all: True if no element is zero."""
    differentiable = False

    def forward(self, x, name, dim=None, keepdim=False):
        self.name = name
        axes = normalize_dims(dim, x.ndim, name)
        y = getattr(self.xp, name)(x, axis=axes, keepdims=keepdim)
        return y.astype(x.dtype) if x.dtype == np.uint8 else y  # as in PyTorch


def sum(input, dim=None, keepdim=False, *, dtype=None):
    return Sum.apply(input, dim=dim, keepdim=keepdim, dtype=dtype)


def mean(input, dim=None, keepdim=False, *, dtype=None):
    return Mean.apply(input, dim=dim, keepdim=keepdim, dtype=dtype)


def var(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    """The variance over `dim`. The sum of squares is divided by n - correction. correction: the
    default is 1, or 0 with unbiased=False. var(x, True) is var(x, unbiased=True), over all
    elements."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    return Var.apply(input, dim=dim, keepdim=keepdim,
                     correction=int(unbiased) if correction is None else correction)


def std(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    """The standard deviation, the square root of `var`. The arguments are the same as in `var`."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    return Std.apply(input, dim=dim, keepdim=keepdim,
                     correction=int(unbiased) if correction is None else correction)


def prod(input, dim=None, keepdim=False, *, dtype=None):
    return Prod.apply(input, dim=dim, keepdim=keepdim, dtype=dtype)


def cumsum(input, dim, *, dtype=None):
    return Cumsum.apply(input, dim=dim, dtype=dtype)


def logsumexp(input, dim, keepdim=False):
    return Logsumexp.apply(input, dim=dim, keepdim=keepdim)


def reduction(name, function, doc=None, /, **options):
    """Returns the op `name`, a function of (input, dim, keepdim) that calls `function.apply`. doc:
    the docstring of the op. The default is the docstring of the Function."""
    def op(input, dim=None, keepdim=False):
        return function.apply(input, dim=dim, keepdim=keepdim, **options)
    op.__name__ = op.__qualname__ = name
    op.__module__, op.__doc__ = function.__module__, doc or function.__doc__
    return op


any = reduction("any", AnyAll, "True if at least one element is not zero.", name="any")
all = reduction("all", AnyAll, "True if no element is zero.", name="all")
