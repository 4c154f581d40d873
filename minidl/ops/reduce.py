"""Reductions: many elements become one, so backward spreads the gradient back.

`dim` is an int, a tuple or None (all), negative counts from the end; `keepdim` leaves a 1 in its
place. fp16 sums in fp32 (`backend.accumulate_dtype`), integers sum in int64, as in PyTorch.

Test: tests/ops/test_reduce.py
"""

import numpy as np

from minidl import backend
from minidl.tensor import Function


def normalize_dims(dim, ndim, op):
    """`dim` as a tuple of axes in [0, ndim); IndexError if out of range, ValueError if repeated."""
    if dim is None:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, (int, np.integer)) else tuple(dim)
    for d in dims:
        if not -max(ndim, 1) <= d < max(ndim, 1):
            raise IndexError(f"{op}: dim {d} is out of range for a tensor of {ndim} dimensions, "
                             f"want {-max(ndim, 1)} to {max(ndim, 1) - 1}")
    axes = tuple(int(d) % ndim for d in dims) if ndim else ()
    if len(set(axes)) < len(axes):
        raise ValueError(f"{op}: dim {dim} names a dimension twice")
    return axes


def keepdim_shape(shape, axes):
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


class Sum(Function):
    """Sum over `dim`. Saves nothing: every element's gradient is the sum's."""

    def forward(self, x, dim=None, keepdim=False, dtype=None):
        axes = normalize_dims(dim, x.ndim, "sum")
        self.shape = x.shape
        self.kept = keepdim_shape(x.shape, axes)
        out = dtype or (np.int64 if x.dtype.kind in "bui" else x.dtype)
        y = x.sum(axis=axes, keepdims=keepdim, dtype=backend.accumulate_dtype(out))
        return y.astype(out, copy=False)

    def backward(self, gy):
        return self.xp.broadcast_to(gy.reshape(self.kept), self.shape)


def sum(input, dim=None, keepdim=False, *, dtype=None):
    return Sum.apply(input, dim=dim, keepdim=keepdim, dtype=dtype)
