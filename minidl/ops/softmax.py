"""Softmax: scores become a distribution.

    y_i = e^(x_i - m) / sum_j e^(x_j - m)      m = max(x): the same y, and e^ cannot overflow
    gx_i = y_i * (gy_i - sum_j gy_j y_j)       dy_i/dx_j = y_i (delta_ij - y_j)

Each step is a pass over memory, so all of them write into one buffer. fp16 is computed in fp32 and
rounded once.      Test: tests/ops/test_softmax.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.ops.dims import normalize_dims


def to_working_dtype(x, dtype, op):
    """`x` in the dtype to compute in, and the dtype of the result."""
    out = np.dtype(dtype or x.dtype)
    if not backend.is_floating(out):
        raise TypeError(f"{op}: wants floating numbers, got {out}; pass dtype= or cast the input")
    return x.astype(backend.accumulate_dtype(out), copy=False), out


def shift_by_max(xp, x, axis):
    """x - max(x) along axis, in a new array, 0-d included; no elements have no maximum."""
    y = xp.empty_like(x)
    return xp.subtract(x, x.max(axis=axis, keepdims=True), out=y) if x.size else y


class Softmax(Function):
    """y = softmax(x) along dim. Saves y alone."""

    precision = "black"

    def forward(self, x, dim, dtype=None):
        (self.axis,) = normalize_dims(dim, x.ndim, "softmax") or (None,)
        x, out = to_working_dtype(x, dtype, "softmax")
        y = shift_by_max(self.xp, x, self.axis)
        self.xp.exp(y, out=y)
        y /= y.sum(axis=self.axis, keepdims=True)
        y = y.astype(out, copy=False)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        gx = self.xp.empty_like(y, dtype=backend.accumulate_dtype(y.dtype))
        self.xp.multiply(gy, y, out=gx, dtype=gx.dtype)
        dot = gx.sum(axis=self.axis, keepdims=True)
        self.xp.subtract(gy, dot, out=gx)
        gx *= y
        return gx


class LogSoftmax(Function):
    """y = x - log(sum(exp(x))) along dim. Saves y: softmax is exp(y), gx = gy - exp(y) sum(gy)."""

    precision = "black"

    def forward(self, x, dim, dtype=None):
        (self.axis,) = normalize_dims(dim, x.ndim, "log_softmax") or (None,)
        x, out = to_working_dtype(x, dtype, "log_softmax")
        y = shift_by_max(self.xp, x, self.axis)
        if y.size:  # a row without elements has no logarithm of its sum
            y -= self.xp.log(self.xp.exp(y).sum(axis=self.axis, keepdims=True))
        y = y.astype(out, copy=False)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        gx = self.xp.empty_like(y, dtype=backend.accumulate_dtype(y.dtype))
        self.xp.exp(y, out=gx, dtype=gx.dtype)
        gx *= gy.sum(axis=self.axis, keepdims=True, dtype=gx.dtype)
        return self.xp.subtract(gy, gx, out=gx)


def softmax(input, dim, dtype=None):
    """exp(input) / sum(exp(input)) along `dim`; `dtype`: cast the input to it first."""
    return Softmax.apply(input, dim=dim, dtype=dtype)


def log_softmax(input, dim, dtype=None):
    """log(softmax(input, dim)), without the rounding of a logarithm of small numbers."""
    return LogSoftmax.apply(input, dim=dim, dtype=dtype)
