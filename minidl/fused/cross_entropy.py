"""Cross entropy of classes by kernels that never write the probabilities.

    forward    reads the logits; keeps lse, the log of the sum of exponentials, one number a row
    backward   e^(x - lse) is the softmax: reads the logits again, writes their gradient, one pass

Saved: the logits, which the layer before keeps anyway, the targets and lse. The plain op saves an
array as large as the logits. "mean" divides by the rows that count, not by all rows.

Kernels: kernels/cross_entropy.cu   Plain op: minidl/ops/cross_entropy.py
Test: tests/fused/test_cross_entropy.py   Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.fused import rows as r

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
        rung = rung or r.best_rung(xp, cols)
        kernel = r.kernel(FILE, f"cross_entropy_v{rung}", x.dtype, **ways)
        args = loss, lse, x, target, rows, cols, ignore_index, smoothing
        r.launch(kernel, rung, rows, args)
    return loss, lse


def backward(g, x, lse, target, ignore_index=-100, smoothing=0.0, rung=None, **ways):
    """gx by the kernel; g (rows,), the gradients of the rows' losses, in the dtype of lse."""
    xp, (rows, cols) = r.backend_of(x), x.shape
    gx = xp.empty_like(x)
    if x.size:
        rung = rung or min(r.best_rung(xp, cols), 2)
        kernel = r.kernel(FILE, f"cross_entropy_backward_v{rung}", x.dtype, **ways)
        args = gx, g, x, lse, target, rows, cols, ignore_index, smoothing
        r.launch(kernel, rung, rows, args)
    return gx


# ---- 3 Function ----


class CrossEntropy(Function):
    """Of x (N, C) and classes (N,). Saves both and lse, a number a row."""

    precision = "black"

    def forward(self, x, target, ignore_index, label_smoothing, reduction):
        xp = self.xp
        x, target = xp.ascontiguousarray(x), xp.ascontiguousarray(target, np.int64)
        counts = target != ignore_index
        wrong = counts & ((target < 0) | (target >= x.shape[1]))
        if wrong.any():  # before the launch: the kernel would read beside the row
            raise IndexError(f"target {int(target[wrong][0])} is no class: there are {x.shape[1]}, "
                             f"0 to {x.shape[1] - 1} (ignore_index is {ignore_index})")
        self.options = ignore_index, label_smoothing
        self.reduction, self.n_counted = reduction, int(counts.sum())
        loss, lse = forward(x, target, *self.options)
        self.save(x, target, lse)
        if reduction == "none":
            return loss.astype(x.dtype, copy=False)
        total = loss.sum()
        if reduction == "mean":  # of nothing: nan, as in PyTorch
            total = total / self.n_counted if self.n_counted else total * np.nan
        return total.astype(x.dtype)

    def backward(self, gy):
        x, target, lse = self.saved
        if self.reduction == "mean":
            gy = gy.astype(lse.dtype) / max(self.n_counted, 1)
        g = self.xp.empty_like(lse)
        g[...] = gy
        return backward(g, x, lse, target, *self.options), None


def cross_entropy(input, target, weight=None, *, ignore_index=-100, reduction="mean",
                  label_smoothing=0.0):
    """-log softmax(input)[target]; input (N, C), target integer classes (N,). weight: None here,
    for class weights, probabilities and more dimensions are the plain op's.

    label_smoothing: a in [0, 1], the wanted distribution becomes (1 - a) * onehot + a / C.
    "mean" divides by the number of targets that are not ignore_index."""
    return CrossEntropy.apply(input, target, ignore_index=ignore_index, reduction=reduction,
                              label_smoothing=label_smoothing)


def accepts(input, target, weight=None, *, ignore_index=-100, reduction="mean",
            label_smoothing=0.0):
    """Whether it is (N, C) and (N,) without class weights, and the options are right; where they
    are not, the plain op says so."""
    if weight is not None or reduction not in ("none", "mean", "sum"):
        return False
    fits = input.ndim == 2 and target.dtype.kind in "iu" and target.shape == input.shape[:1]
    return (fits and backend.is_floating(input.dtype) and input.shape[1] > 0
            and 0 <= label_smoothing <= 1)
