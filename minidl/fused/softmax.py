"""Softmax and its logarithm over rows: one kernel each way.

    y = e^(x - max) / sum       gx = y * (gy - sum of gy * y)      over the rows of (rows, cols)

Kernels: kernels/softmax.cu (the logarithm is the same file compiled with -DLOG=1)
Op: minidl/ops/softmax.py   Test: tests/fused/test_softmax.py
Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

from minidl.fused import rows as r

FILE = "softmax.cu"


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
    xp, (rows, cols) = r.backend_of(x), x.shape
    y = xp.empty_like(x)
    if x.size:
        rung = rung or r.best_rung(xp, cols)
        ways |= {"LOG": int(log), **r.kept(xp, rung, cols)}
        kernel = r.kernel(FILE, f"softmax_v{rung}", x.dtype, **ways)
        r.launch(kernel, rung, rows, (y, x, rows, cols))
    return y


def backward(gy, y, log=False, rung=None, **ways):
    """gx by the kernel."""
    xp, (rows, cols) = r.backend_of(y), y.shape
    gx = xp.empty_like(y)
    if y.size:
        rung = rung or r.best_rung(xp, cols)
        ways |= {"LOG": int(log), **r.kept(xp, rung, cols)}
        kernel = r.kernel(FILE, f"softmax_backward_v{rung}", y.dtype, **ways)
        r.launch(kernel, rung, rows, (gx, gy, y, rows, cols))
    return gx


def along_last(x, axis, log):
    """Over the last axis of an array of any shape; contiguous in and out."""
    rows = r.as_rows(x)
    return forward(rows, log).reshape(x.shape)


def along_last_backward(gy, y, axis, log):
    return backward(r.as_rows(gy), r.as_rows(y), log).reshape(y.shape)
