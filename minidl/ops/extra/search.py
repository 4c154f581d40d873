"""Ops that search and count. Their results have no gradient.

    searchsorted([1 3 5], 3) = 1        3 can be inserted at place 1, and the order is kept
    bincount([0 2 2 0]) = [2 0 2]       how many times 0, 1 and 2 occur
    unique([3 1 3]) = [1 3]             the different values, in order

The result sizes of nonzero, unique and bincount depend on the values. So on a GPU the host waits.
Test: tests/ops/extra/test_search.py
"""

from typing import Any

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.tensor import Tensor


class Nonzero(Function):
    """The places of the elements that are not zero, in row-major order: (n, ndim)."""
    differentiable = False

    def forward(self, x):
        places = self.xp.nonzero(x if x.ndim else x.reshape(1))
        return self.xp.stack(places, axis=1)[:, :x.ndim]


class Unique(Function):
    """Returns three results. First: the different values, in order. Second: for each element of x,
    its index among these values. Third: how many times each value occurs."""
    differentiable = False

    def forward(self, x, dim):
        values, inverse, counts = self.xp.unique(
            x, return_inverse=True, return_counts=True, axis=dim,
            **({} if dim is not None else {"equal_nan": False}))
        return values, inverse.reshape(x.shape if dim is None else -1), counts


class Bincount(Function):
    """Counts how many times each of the integers 0, 1, ... occurs in a vector. If weights are
    given, adds up the weights of each integer instead."""
    differentiable = False

    def forward(self, x, weights, minlength):
        if x.ndim != 1 or x.dtype.kind not in "iu":
            raise ValueError(f"bincount: wants a vector of integers, got {x.dtype} of shape "
                             f"{x.shape}")
        counts = self.xp.bincount(x, weights, minlength)
        narrow = weights is not None and weights.dtype == np.float32
        return counts.astype(np.float32) if narrow else counts


class Searchsorted(Function):
    """For each value of v, the place in a sorted row at which the value can be inserted."""
    differentiable = False

    def forward(self, rows, v, side, dtype):
        if rows.ndim > 1 and rows.shape[:-1] != v.shape[:-1]:
            raise ValueError("searchsorted: sequences must be one sorted vector, or have one "
                             "sorted row for each row of values; got sequences of shape "
                             f"{rows.shape}, values of shape {v.shape}")
        common = backend.promote_types(rows.dtype, v.dtype)
        rows, v = rows.astype(common, copy=False), v.astype(common, copy=False)
        if rows.ndim == 1:
            return self.xp.searchsorted(rows, v, side).astype(dtype)
        out = self.xp.empty(v.shape, dtype)
        for i in np.ndindex(*v.shape[:-1]):
            out[i] = self.xp.searchsorted(rows[i], v[i], side)
        return out


class Isclose(Function):
    """True where |a - b| <= atol + rtol |b|."""
    differentiable = False
    promotes = "same"

    def forward(self, a, b, rtol, atol, equal_nan):
        return self.xp.isclose(a, b, rtol, atol, equal_nan)


class OneHot(Function):
    """(...) integers -> (..., n), with a 1 at the place of the integer, else 0."""
    differentiable = False

    def forward(self, x, n):
        if x.dtype.kind not in "iu":
            raise TypeError(f"one_hot: wants integers, got {x.dtype}")
        if x.size == 0 and n <= 0:
            raise ValueError("one_hot: an input without elements wants num_classes >= 1, because "
                             f"num_classes cannot be guessed; got {n}")
        least, most = (int(x.min()), int(x.max())) if x.size else (0, 0)
        if least < 0 or 0 <= n <= most:
            raise IndexError("one_hot: classes must be 0 or more, and below num_classes; got "
                             f"classes from {least} to {most}, num_classes={n}")
        n = most + 1 if n < 0 else n
        return (x[..., None] == self.xp.arange(n)).astype(np.int64)


def nonzero(input, *, as_tuple=False) -> Tensor | tuple[Tensor, ...]:
    """Returns the places of the elements that are not zero, (n, ndim) int64. as_tuple: if True,
    returns a tuple instead, with one vector for each dimension. This tuple can be used as an
    index."""
    if not as_tuple:
        return Nonzero.apply(input)
    return Nonzero.apply(input if input.ndim else input.unsqueeze(0)).unbind(1)


def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None) -> Any:
    """Returns the different values in order. If `dim` is given, returns the different slices along
    `dim`. return_inverse: if True, also returns for each element of the input its index among the
    different values. return_counts: if True, also returns how many times each value occurs."""
    values, inverse, counts = Unique.apply(input, dim=dim)
    wanted = (values, *((inverse,) * return_inverse), *((counts,) * return_counts))
    return wanted if len(wanted) > 1 else values


def bincount(input, weights=None, minlength=0):
    """Returns how many times each integer from 0 to the largest element occurs in a vector.
    weights: if given, returns the sum of the weights of each integer instead. minlength: the least
    length of the result."""
    return Bincount.apply(input, weights, minlength=minlength)


def searchsorted(sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None):
    """Returns for each value v of input the index i with sequence[i-1] < v <= sequence[i]. If
    `right` is True, returns the index i with sequence[i-1] <= v < sequence[i]. sorted_sequence: one
    vector for all values, or one row for each row of values."""
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    if side not in (None, "left", "right") or (right and side == "left"):
        raise ValueError("searchsorted: side must be 'left' or 'right', and 'right' if right=True; "
                         f"got side={side!r}, right={right}")
    if not hasattr(input, "ndim"):
        input = Tensor(sorted_sequence._xp.asarray(input, backend.result_dtype([input])))
    return Searchsorted.apply(sorted_sequence, input, side="right" if right else side or "left",
                              dtype=np.int32 if out_int32 else np.int64)


def bucketize(input, boundaries, *, out_int32=False, right=False):
    """Returns the index of the bucket of each element: searchsorted(boundaries, input)."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isclose(input, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Returns True where |input - other| <= atol + rtol |other|, for each element."""
    return Isclose.apply(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(input, other, rtol=1e-5, atol=1e-8, equal_nan=False) -> bool:
    """Returns a Python bool: True if isclose holds for all elements."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


def one_hot(input, num_classes=-1):
    """Returns (..., num_classes) int64: for each integer a row of zeros, with a 1 at the place of
    the integer. num_classes=-1 means the largest integer + 1."""
    return OneHot.apply(input, n=num_classes)
