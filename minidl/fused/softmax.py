"""Softmax and its logarithm over rows: one kernel each way.

    y = e^(x - max) / sum       gx = y * (gy - sum of gy * y)      over the rows of (rows, cols)

Kernels: kernels/softmax.cu (the logarithm is the same file compiled with -DLOG=1)
Op: minidl/ops/softmax.py   Test: tests/fused/test_softmax.py
Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

from minidl.cuda import rows as r

FILE = "softmax.cu"
LOG = (("LOG", 0),), (("LOG", 1),)  # the macros: LOG[log]


# ---- 1 reference ----


def reference(x, log=False):
    """softmax of the rows of x (rows, cols), or its logarithm, in the dtype of x."""
    s = x - x.max(axis=1, keepdims=True)
    total = np.exp(s).sum(axis=1, keepdims=True)
    return s - np.log(total) if log else np.exp(s) / total


def reference_backward(gy, y, log=False):
    if log:
        return gy - np.exp(y) * gy.sum(axis=1, keepdims=True)
    return y * (gy - (gy * y).sum(axis=1, keepdims=True))


# ---- 2 launch ----


def forward(x, log=False, rung=None, **ways):
    """y by the kernel; x (rows, cols), contiguous. rung, ways: as in fused/layer_norm.py."""
    y = r.backend_of(x).empty(x.shape, x.dtype)
    if x.size:
        r.launch(FILE, "softmax", x, (y, x, *x.shape), rung, LOG[log], ways)
    return y


def backward(gy, y, log=False, rung=None, **ways):
    """gx by the kernel."""
    gx = r.backend_of(y).empty(y.shape, y.dtype)
    if y.size:
        args = gx, gy, y, *y.shape
        r.launch(FILE, "softmax_backward", y, args, rung, LOG[log], ways)
    return gx


def along_last(x, axis, log):
    """Over the last axis of an array of any shape; contiguous in and out."""
    if x.ndim == 2 and x.flags.c_contiguous:
        return forward(x, log)
    return forward(r.as_rows(x), log).reshape(x.shape)


def along_last_backward(gy, y, axis, log):
    return backward(r.as_rows(gy), r.as_rows(y), log).reshape(y.shape)
