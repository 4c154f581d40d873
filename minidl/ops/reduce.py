"""Reductions: many elements become one, so backward repeats the gradient for each of them.

The plain form of a sum, and why its type matters: minidl/plain/floats.py. Here: `dim` is an int, a
tuple or None (all), negative counts from the end; `keepdim` leaves a 1 in its place. fp16 sums in
fp32 (`backend.accumulate_dtype`), integers sum in int64, as in PyTorch. The largest and the
smallest element are in extreme.py.   Test: tests/ops/test_reduce.py
"""

import math

import numpy as np

from minidl import backend
from minidl.forward import op_name
from minidl.function import Function
from minidl.ops.dims import normalize_dims


class Reduction(Function):
    """What reductions share: their axes and shapes, and the gradient in the input's shape."""

    def over(self, x, dim, keepdim):
        """The axes of `dim`, and how many elements become one; remembers the shapes."""
        axes = normalize_dims(dim, x.ndim, op_name(type(self)))
        self.shape = x.shape
        self.kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        self.result = self.kept if keepdim else tuple(
            n for i, n in enumerate(x.shape) if i not in axes)
        return axes, math.prod(x.shape[i] for i in axes)

    def spread(self, gy):
        """gy as a read-only view of x's shape."""
        return self.xp.broadcast_to(gy.reshape(self.kept), self.shape)


def dtype_of_sum(x, dtype):
    """The dtype of a sum or a product over x: the one asked for, else int64 for integers."""
    return np.dtype(dtype or (np.int64 if x.dtype.kind in "bui" else x.dtype))


class Sum(Reduction):
    """Sum over `dim`. Saves nothing: every element's gradient is the sum's."""
    precision = "black"

    def forward(self, x, dim=None, keepdim=False, dtype=None):
        axes, _ = self.over(x, dim, keepdim)
        out = dtype_of_sum(x, dtype)
        y = x.sum(axis=axes, keepdims=keepdim, dtype=backend.accumulate_dtype(out))
        return y.astype(out, copy=False)

    def backward(self, gy):
        return self.spread(gy)


class Mean(Reduction):
    """Sum over `dim`, divided by the number of elements (of none: nan)."""
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

    Where n - correction is 0 or less, it divides by 0, as PyTorch: inf, or nan where all are equal.
    """
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
        with np.errstate(invalid="ignore"):  # 0 times inf
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
    """The square root of Var, with slope 0 where it is 0."""

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
    """The product over one dim or all. The gradient of x[i] is the product of the others: those
    before it times those after it, so zeros need no division."""
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
    """y[i] = x[0] + ... + x[i] along `dim`; so gx[i] = gy[i] + ... + gy[n-1]."""
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
    """y = log(sum(e^x)), with the maximum taken out so that nothing overflows."""
    precision = "black"
    promotes = "float"

    def forward(self, x, dim, keepdim=False):
        xp = self.xp
        axes, n = self.over(x, dim, keepdim)
        largest = x.max(axis=axes, keepdims=True) if n else xp.full(self.kept, -np.inf, x.dtype)
        largest = xp.where(xp.isfinite(largest), largest, 0).astype(x.dtype, copy=False)
        dtype = backend.accumulate_dtype(x.dtype)
        total = xp.exp(x - largest).sum(axis=axes, keepdims=True, dtype=dtype)
        with np.errstate(divide="ignore"):  # a row of -inf has sum 0 and logarithm -inf
            y = xp.log(total) + largest
        self.save(x, y)
        return y.reshape(self.result).astype(x.dtype, copy=False)

    def backward(self, gy):
        x, y = self.saved
        y = self.xp.where(self.xp.isneginf(y), 0, y)
        return self.spread(gy) * self.xp.exp(x - y)


class AnyAll(Function):
    """Whether an element is not zero (any), or all are not (all)."""
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
    """The variance; divides by n - correction (1; 0 for `unbiased=False`). var(x, True) of all."""
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    return Var.apply(input, dim=dim, keepdim=keepdim,
                     correction=int(unbiased) if correction is None else correction)


def std(input, dim=None, unbiased=True, keepdim=False, *, correction=None):
    """The standard deviation, the square root of `var`."""
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
    """The op `name` over `dim`, which only calls `function.apply`; as `unary` in elementwise.py."""
    def op(input, dim=None, keepdim=False):
        return function.apply(input, dim=dim, keepdim=keepdim, **options)
    op.__name__ = op.__qualname__ = name
    op.__module__, op.__doc__ = function.__module__, doc or function.__doc__
    return op


any = reduction("any", AnyAll, "Whether an element is true, that is, not zero.", name="any")
all = reduction("all", AnyAll, "Whether all elements are true, that is, not zero.", name="all")
