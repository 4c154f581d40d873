"""Searching and counting: results are integers and bools, so there is no gradient.

    searchsorted([1 3 5], 3) = 1        where 3 could be put in without disturbing the order
    bincount([0 2 2 0]) = [2 0 2]       how often each number comes
    unique([3 1 3]) = [1 3]             what there is, in order

The sizes of nonzero, unique and bincount depend on the values: on a GPU these wait for the device.
Test: tests/ops/extra/test_search.py
"""

from typing import Any

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.tensor import Tensor


class Nonzero(Function):
    """(n, ndim): the place of each element that is not zero, in row-major order."""
    differentiable = False

    def forward(self, x):
        places = self.xp.nonzero(x if x.ndim else x.reshape(1))
        return self.xp.stack(places, axis=1)[:, :x.ndim]


class Unique(Function):
    """(values in order, for each element which value it is, how often each comes)."""
    differentiable = False

    def forward(self, x, dim):
        values, inverse, counts = self.xp.unique(
            x, return_inverse=True, return_counts=True, axis=dim,
            **({} if dim is not None else {"equal_nan": False}))
        return values, inverse.reshape(x.shape if dim is None else -1), counts


class Bincount(Function):
    """How often each integer from 0 on comes in a vector, or the sum of its weights."""
    differentiable = False

    def forward(self, x, weights, minlength):
        if x.ndim != 1 or x.dtype.kind not in "iu":
            raise ValueError(f"bincount: wants a vector of integers, got {x.dtype} of shape "
                             f"{x.shape}")
        counts = self.xp.bincount(x, weights, minlength)
        narrow = weights is not None and weights.dtype == np.float32
        return counts.astype(np.float32) if narrow else counts


class Searchsorted(Function):
    """For each value of v, the first place in a sorted row before which it could go."""
    differentiable = False

    def forward(self, rows, v, side, dtype):
        if rows.ndim > 1 and rows.shape[:-1] != v.shape[:-1]:
            raise ValueError(f"searchsorted: sequences {rows.shape}, values {v.shape}; want one "
                             "vector, or one row for each row of values")
        common = backend.promote_types(rows.dtype, v.dtype)
        rows, v = rows.astype(common, copy=False), v.astype(common, copy=False)
        if rows.ndim == 1:
            return self.xp.searchsorted(rows, v, side).astype(dtype)
        out = self.xp.empty(v.shape, dtype)
        for i in np.ndindex(*v.shape[:-1]):
            out[i] = self.xp.searchsorted(rows[i], v[i], side)
        return out


class Isclose(Function):
    """|a - b| <= atol + rtol |b|, element by element."""
    differentiable = False
    promotes = "same"

    def forward(self, a, b, rtol, atol, equal_nan):
        return self.xp.isclose(a, b, rtol, atol, equal_nan)


class OneHot(Function):
    """(..., n) with a 1 at the place that the integer says."""
    differentiable = False

    def forward(self, x, n):
        if x.dtype.kind not in "iu":
            raise TypeError(f"one_hot: wants integers, got {x.dtype}")
        if x.size == 0 and n <= 0:
            raise ValueError("one_hot: of no elements wants num_classes; it cannot be guessed")
        least, most = (int(x.min()), int(x.max())) if x.size else (0, 0)
        if least < 0 or 0 <= n <= most:
            raise IndexError(f"one_hot: classes from {least} to {most}, want 0 to {n - 1}")
        n = most + 1 if n < 0 else n
        return (x[..., None] == self.xp.arange(n)).astype(np.int64)


def nonzero(input, *, as_tuple=False) -> Tensor | tuple[Tensor, ...]:
    """(n, ndim) int64: the places of the elements that are not zero; as_tuple: one vector a
    dimension, which is what `x[...]` takes."""
    if not as_tuple:
        return Nonzero.apply(input)
    return Nonzero.apply(input if input.ndim else input.unsqueeze(0)).unbind(1)


def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None) -> Any:
    """The different values in order, or the different slices along `dim`; with them, if asked for,
    which one each element is, and how often each comes."""
    values, inverse, counts = Unique.apply(input, dim=dim)
    wanted = (values, *((inverse,) * return_inverse), *((counts,) * return_counts))
    return wanted if len(wanted) > 1 else values


def bincount(input, weights=None, minlength=0):
    """How often each integer from 0 to the largest comes; `weights`: the sums of those instead."""
    return Bincount.apply(input, weights, minlength=minlength)


def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """The index i with sequence[i-1] < v <= sequence[i] for each value v; with `right`, the one
    with sequence[i-1] <= v < sequence[i]. One sorted vector for all, or a row for each row."""
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    if side not in (None, "left", "right") or (right and side == "left"):
        raise ValueError(f"searchsorted: side is 'left' or 'right', got {side!r}, right={right}")
    if not hasattr(input, "ndim"):
        input = Tensor(sorted_sequence._xp.asarray(input, backend.result_dtype([input])))
    return Searchsorted.apply(sorted_sequence, input, side="right" if right else side or "left",
                              dtype=np.int32 if out_int32 else np.int64)


def bucketize(input, boundaries, *, out_int32=False, right=False):
    """Which bucket each element falls into: searchsorted with its arguments exchanged."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isclose(input, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Whether |input - other| <= atol + rtol |other|, for each element."""
    return Isclose.apply(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(input, other, rtol=1e-5, atol=1e-8, equal_nan=False) -> bool:
    """Whether all elements are close, as a Python bool."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


def one_hot(input, num_classes=-1):
    """(..., num_classes) int64, a row of zeros and a one for each integer; -1: the largest + 1."""
    return OneHot.apply(input, n=num_classes)
