"""The largest and the smallest element, and their indices.

    x = [1 3 3]    max(x) = 3     gradient [0 1/2 1/2]: equal elements share it, as in amax
                   max(x, 0) = (3, index 1)  [0 1 0]:   only the element at index 1 gets a gradient

PyTorch has the same rules for equal elements. `dim` and `keepdim` are as in reduce.py.
Test: tests/ops/test_extreme.py
"""

from typing import NamedTuple

import numpy as np

from minidl.function import Function
from minidl.ops.dims import normalize_dims
from minidl.ops.index import along
from minidl.ops.masks import select
from minidl.ops.reduce import Reduction, reduction
from minidl.ops.select import maximum, minimum
from minidl.saved import note
from minidl.tensor import Tensor


class Found(NamedTuple):
    """The result of max, sort and similar ops along one dim. Each op has its own subclass, so that
    the printed name is right."""
    values: Tensor
    indices: Tensor


class MaxResult(Found):
    pass


class MinResult(Found):
    pass


class Amax(Reduction):
    """The largest element over `dim`. Equal elements share the gradient evenly. If there is a nan,
    the result is nan."""
    smallest = False

    def forward(self, x, dim=None, keepdim=False):
        axes, _ = self.over(x, dim, keepdim)
        y = (x.min if self.smallest else x.max)(axis=axes, keepdims=True)
        self.save(x, y)
        return y.reshape(self.result)

    def backward(self, gy):
        x, y = self.saved
        best = (x == y) | (x != x)  # a nan is not equal to itself
        axes = tuple(i for i, (n, m) in enumerate(zip(self.shape, self.kept)) if n != m)
        n_best = best.sum(axis=axes, keepdims=True)
        return select(self.spread(gy.reshape(self.kept) / self.xp.maximum(n_best, 1)), best)


class Amin(Amax):
    """The smallest element over `dim`. The rules for equal elements and nan are as in Amax."""
    smallest = True


def with_indices(result, pair):
    """Returns the named tuple result(values, indices). Registers the indices with `note` of
    saved.py, because backward reads them."""
    values, indices = pair
    return result(note(values, [indices]), indices)


class MaxAlong(Reduction):
    """(values, indices) of the largest elements along one dim. If several elements are equal, the
    first one is used."""
    smallest = False

    def forward(self, x, dim, keepdim=False):
        self.name = "min" if self.smallest else "max"
        axes, _ = self.over(x, dim, keepdim)
        if x.ndim == 0:
            return x.copy(), self.xp.zeros((), np.int64)
        indices = (x.argmin if self.smallest else x.argmax)(axis=axes[0]).reshape(self.kept)
        self.at = along(self.xp, indices, axes[0])
        return x[self.at].reshape(self.result), indices.reshape(self.result)

    def backward(self, gy, _):
        gx = self.xp.zeros(self.shape, gy.dtype)
        gx[self.at if self.shape else ()] = gy.reshape(self.kept)
        return gx


class MinAlong(MaxAlong):
    """(values, indices) of the smallest elements along one dim."""
    smallest = True


class Argmax(Function):
    """The int64 index of the first largest (or smallest) element along `dim`. If dim is None, the
    index counts all elements in row-major order."""
    differentiable = False

    def forward(self, x, dim=None, keepdim=False, smallest=False):
        self.name = "argmin" if smallest else "argmax"
        if dim is not None:
            dim = (normalize_dims(dim, x.ndim, self.name) or (None,))[0]
        return (x.argmin if smallest else x.argmax)(axis=dim, keepdims=keepdim)


amax, amin = reduction("amax", Amax), reduction("amin", Amin)


def max(input, dim=None, keepdim=False) -> Tensor | MaxResult:
    """max(x) is the largest element. max(x, dim) is the named tuple (values, indices) of the
    largest elements along `dim`. max(x, y) is maximum(x, y)."""
    if dim is None:
        return Amax.apply(input)
    if isinstance(dim, Tensor) or getattr(dim, "ndim", 0):
        return maximum(input, dim)
    return with_indices(MaxResult, MaxAlong.apply(input, dim=dim, keepdim=keepdim))


def min(input, dim=None, keepdim=False) -> Tensor | MinResult:
    """min(x) is the smallest element. min(x, dim) is the named tuple (values, indices) of the
    smallest elements along `dim`. min(x, y) is minimum(x, y)."""
    if dim is None:
        return Amin.apply(input)
    if isinstance(dim, Tensor) or getattr(dim, "ndim", 0):
        return minimum(input, dim)
    return with_indices(MinResult, MinAlong.apply(input, dim=dim, keepdim=keepdim))


argmax = reduction("argmax", Argmax, "The index of the first largest element.")
argmin = reduction("argmin", Argmax, "The index of the first smallest element.", smallest=True)
