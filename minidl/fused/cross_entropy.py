"""Cross entropy of classes by kernels that never write the probabilities.

    forward    reads the logits; keeps lse, the log of the sum of exponentials, one number a row
    backward   e^(x - lse) is the softmax: reads the logits again, writes their gradient, one pass

Kernels: kernels/cross_entropy.cu   Op: minidl/ops/cross_entropy.py
Test: tests/fused/test_cross_entropy.py   Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import rows as r

FILE = "cross_entropy.cu"


# ---- 1 reference ----


def reference(x, target, ignore_index=-100, smoothing=0.0):
    """(loss, lse) of the rows of x (rows, cols), in the dtype of x; loss 0 where ignored."""
    top = x.max(axis=1)
    lse = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
    counts = target != ignore_index
    picked = x[np.arange(len(x)), np.where(counts, target, 0)]
    loss = lse - (1 - smoothing) * picked
    if smoothing:
        loss = loss - smoothing * x.mean(axis=1)
    return np.where(counts, loss, 0), lse


def reference_backward(g, x, lse, target, ignore_index=-100, smoothing=0.0):
    """gx, from g, the gradients of the rows' losses."""
    counts = target != ignore_index
    wanted = np.full_like(x, smoothing / x.shape[1])
    wanted[np.arange(len(x)), np.where(counts, target, 0)] += 1 - smoothing
    return (g * counts)[:, None] * (np.exp(x - lse[:, None]) - wanted)


# ---- 2 launch ----


def forward(x, target, ignore_index=-100, smoothing=0.0, rung=None, **ways):
    """(loss, lse) of each row by the kernel; x (rows, cols), target (rows,) of int64, contiguous,
    every target a class or ignore_index. rung, ways: as in fused/layer_norm.py."""
    xp, (rows, cols) = r.backend_of(x), x.shape
    loss, lse = (xp.empty(rows, backend.accumulate_dtype(x.dtype)) for _ in range(2))
    if rows:
        args = loss, lse, x, target, rows, cols, ignore_index, smoothing
        r.launch(FILE, "cross_entropy", x, args, rung or best_rung(xp, cols), ways=ways)
    return loss, lse


def backward(g, x, lse, target, ignore_index=-100, smoothing=0.0, rung=None, **ways):
    """gx by the kernel; g (rows,), the gradients of the rows' losses, in the dtype of lse."""
    xp, (rows, cols) = r.backend_of(x), x.shape
    gx = xp.empty_like(x)
    if x.size:
        args = gx, g, x, lse, target, rows, cols, ignore_index, smoothing
        r.launch(FILE, "cross_entropy_backward", x, args, rung or best_rung(xp, cols),
                 ways=ways)
    return gx


def best_rung(xp, cols):
    """v4 and v5 keep no row, so that any length will do, and rows may begin anywhere."""
    if xp is np:
        return 1
    return 4 if cols <= r.MAX_KEPT else 5
