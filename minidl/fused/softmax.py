"""Softmax and its logarithm over rows: one kernel each way.

    softmax(scale * x)     of (rows, cols); queries > 0: row i sees the columns 0 to i % queries

Scale and mask, as attention scores have them, cost no array and no pass of their own.

Kernels: kernels/softmax.cu (the logarithm is the same file compiled with -DLOG=1)
Op: minidl/ops/softmax.py   Test: tests/fused/test_softmax.py
Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

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
    y = r.backend_of(x).empty(x.shape, x.dtype)
    if x.size:
        r.launch(FILE, "softmax", x, (y, x, *x.shape, queries, scale), rung, LOG=int(log), **ways)
    return y


def backward(gy, y, log=False, scale=1.0, rung=None, **ways):
    """gx by the kernel. Where the mask hid a column y is 0, and so is gx."""
    gx = r.backend_of(y).empty(y.shape, y.dtype)
    if y.size:
        args = gx, gy, y, *y.shape, scale
        r.launch(FILE, "softmax_backward", y, args, rung, LOG=int(log), **ways)
    return gx


def along_last(x, axis, log):
    """Over the last axis of an array of any shape; contiguous in and out."""
    rows = r.as_rows(x)
    return forward(rows, log).reshape(x.shape)


def along_last_backward(gy, y, axis, log):
    return backward(r.as_rows(gy), r.as_rows(y), log).reshape(y.shape)
