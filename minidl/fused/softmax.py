"""Softmax, its logarithm, and the causal softmax of attention scores: one kernel each way.

    softmax(x), log_softmax(x)     over the last dimension; other dimensions are the plain op's
    causal_softmax(x, scale)       softmax(scale * x), row i of (..., L, S) sees columns 0 to i

Saved: y alone. Scale and mask cost no array and no pass of their own.

Kernels: kernels/softmax.cu (the logarithm is the same file compiled with -DLOG=1)
Plain ops: minidl/ops/softmax.py   Test: tests/fused/test_softmax.py
Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

from minidl.function import Function
from minidl.fused import rows as r

FILE = "softmax.cu"


# ---- 1 reference ----


def reference(x, log=False, scale=1.0, queries=0):
    """softmax(scale * x) of the rows of x (rows, cols), or its logarithm, in the dtype of x.
    queries > 0: row i sees the columns 0 to i % queries."""
    s = scale * x
    if queries:
        hidden = np.arange(x.shape[1]) > np.arange(len(x))[:, None] % queries
        s = np.where(hidden, -np.inf, s)
    s = s - s.max(axis=1, keepdims=True)
    total = np.exp(s).sum(axis=1, keepdims=True)
    return s - np.log(total) if log else np.exp(s) / total


def reference_backward(gy, y, log=False, scale=1.0):
    if log:
        return scale * (gy - np.exp(y) * gy.sum(axis=1, keepdims=True))
    return scale * y * (gy - (gy * y).sum(axis=1, keepdims=True))


# ---- 2 launch ----


def forward(x, log=False, scale=1.0, queries=0, rung=None, **ways):
    """y by the kernel; x (rows, cols), contiguous. rung, ways: as in fused/layer_norm.py."""
    xp, (rows, cols) = r.backend_of(x), x.shape
    y = xp.empty_like(x)
    if x.size:
        rung = rung or r.best_rung(xp, cols)
        ways |= {"LOG": int(log), **r.kept(xp, rung, cols)}
        kernel = r.kernel(FILE, f"softmax_v{rung}", x.dtype, **ways)
        r.launch(kernel, rung, rows, (y, x, rows, cols, queries, scale))
    return y


def backward(gy, y, log=False, scale=1.0, rung=None, **ways):
    """gx by the kernel. Where the mask hid a column y is 0, and so is gx."""
    xp, (rows, cols) = r.backend_of(y), y.shape
    gx = xp.empty_like(y)
    if y.size:
        rung = rung or r.best_rung(xp, cols)
        ways |= {"LOG": int(log), **r.kept(xp, rung, cols)}
        kernel = r.kernel(FILE, f"softmax_backward_v{rung}", y.dtype, **ways)
        r.launch(kernel, rung, rows, (gx, gy, y, rows, cols, scale))
    return gx


# ---- 3 Function ----


class Softmax(Function):
    """y = softmax(scale * x) over the last dimension. Saves y."""

    precision = "black"
    log = False

    def forward(self, x, scale=1.0, queries=0):
        rows = self.xp.ascontiguousarray(x).reshape(-1 if x.size else 0, max(x.shape[-1], 1))
        y = forward(rows, self.log, scale, queries).reshape(x.shape)
        self.scale = scale
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        rows = y.reshape(-1 if y.size else 0, max(y.shape[-1], 1))
        g = self.xp.ascontiguousarray(gy).reshape(rows.shape)
        return backward(g, rows, self.log, self.scale).reshape(y.shape)


class LogSoftmax(Softmax):
    log = True


def softmax(input, dim, dtype=None):
    """exp(input) / sum(exp(input)) along `dim`, the last one."""
    return Softmax.apply(input)


def log_softmax(input, dim, dtype=None):
    """log(softmax(input, dim)), without the rounding of a logarithm of small numbers."""
    return LogSoftmax.apply(input)


def causal_softmax(input, scale=1.0):
    """softmax(scale * input) of scores (..., L, S) where query i sees keys 0 to i; 0 elsewhere."""
    if input.ndim < 2:
        raise ValueError(f"causal_softmax: input {tuple(input.shape)}, want (..., queries, keys)")
    return Softmax.apply(input, scale=scale, queries=input.shape[-2])


def accepts(input, dim, dtype=None):
    """Whether it is over the last dimension and without a cast."""
    last = type(dim) is int and input.ndim > 0 and dim in (-1, input.ndim - 1)
    return last and (dtype is None or np.dtype(dtype) == input.dtype)
