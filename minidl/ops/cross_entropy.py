"""Cross entropy: the loss of a row of scores (logits) for its target class.

The plain form: minidl/plain/training.py. In this file, one Function computes the softmax and the
logarithm, and picks the element of the target class. log and exp cancel for the target. So
forward does not compute the probability itself, which can be rounded to 0. Without a kernel, only
backward makes an array of probabilities. This array becomes the gradient:
gx_i = softmax(x_i) - onehot(target_i).

Rows with the target ignore_index, such as padding, do not count. "mean" divides by the number of
the rows that count, or by the sum of their weights.

The kernels make no array of probabilities at all. Forward reads the logits and keeps lse, the log
of the sum of exponentials, one number for each row. Backward reads the logits again, and computes
the softmax as e^(x - lse).

Kernels: kernels/cross_entropy.cu; on a CPU kernels/cpu/cross_entropy.cu
Tutorial: tutorials/03_kernel_tour.py
Test: tests/ops/test_loss.py, test_cross_entropy_kernel.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import rows as row_kernels
from minidl.cuda.dispatch import pick
from minidl.cuda.index_check import checked
from minidl.cuda.launch import scratch
from minidl.function import Function
from minidl.ops.elementwise import add, mul
from minidl.ops.loss import check_reduction
from minidl.ops.reduce import sum as sum_
from minidl.ops.softmax import log_softmax

FILE = "cross_entropy.cu"


def class_rows(x):
    """Returns x, (N, C, d1, ...) or (C,), as rows (N * d1 * ..., C), with the classes last."""
    if x.ndim <= 2:
        return x.reshape(-1, x.shape[-1]) if x.ndim == 1 else x
    moved = x.swapaxes(1, -1) if x.ndim == 3 else x.transpose(0, *range(2, x.ndim), 1)
    return moved.reshape(-1 if x.size else math.prod(moved.shape[:-1]), x.shape[1])


def unclass_rows(rows, shape):
    """Returns rows in the original shape. The inverse of class_rows."""
    if len(shape) <= 2:
        return rows.reshape(shape)
    moved = rows.reshape(shape[0], *shape[2:], shape[1])
    return moved.transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


def check_targets(xp, op, x, target, ignore_index):
    """Returns the target as rows, (n,). Raises ValueError for wrong shapes or dtypes. Raises
    IndexError if a target is neither a class nor ignore_index. On a GPU this error is raised later
    (cuda/index_check.py). Until then an invalid target counts as ignored."""
    want = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    if x.ndim == 0 or x.dtype.kind != "f" or target.dtype.kind not in "iu" or target.shape != want:
        raise ValueError(f"{op}: input must have a floating dtype and the shape (N, C, d1, ...) or "
                         "(C,), where C is the number of classes. target must have an integer "
                         f"dtype and the shape (N, d1, ...) or (); got input {x.shape} of "
                         f"{x.dtype}, target {target.shape} of {target.dtype}")
    target = target.reshape(-1)
    n_classes = x.shape[0 if x.ndim == 1 else 1]
    if xp is not np:
        return checked(op, target, n_classes, ignore_index)
    classes = xp.where(target != ignore_index, target, 0)
    if target.size and not (0 <= int(classes.min()) and int(classes.max()) < n_classes):
        bad = classes[(classes < 0) | (classes >= n_classes)]
        raise IndexError(f"{op}: target {int(bad[0])} is no class. The input {x.shape} has the "
                         f"classes 0 to {n_classes - 1}. Only one other number is allowed, "
                         f"ignore_index = {ignore_index}")
    return target


def check_class_weight(op, weight, n_classes):
    if weight is not None and weight.shape != (n_classes,):
        raise ValueError(f"{op}: weight must have the shape ({n_classes},), one number for "
                         f"each class; got {weight.shape}")


class CrossEntropy(Function):
    """-log softmax(x)[target]. With label smoothing a, the target distribution is (1 - a) * onehot
    + a / C.

    Saves the logits as rows, the targets, the class weights, and for each row lse = log(sum of
    exponentials). The logits are not copied if they are contiguous rows already."""

    precision = "black"

    def forward(self, x, target, weight, ignore_index, label_smoothing, reduction):
        xp = self.xp
        targets = check_targets(xp, "cross_entropy", x, target, ignore_index)
        targets = xp.ascontiguousarray(targets, np.int64)
        rows = xp.ascontiguousarray(class_rows(x))
        check_class_weight("cross_entropy", weight, rows.shape[1])
        self.options, self.x_shape = (ignore_index, label_smoothing), x.shape
        self.reduction, self.weighted = reduction, weight is not None
        run = pick(by_kernel, by_numpy, rows) if weight is None else by_numpy
        loss, lse = run(rows, targets, *self.options, **weighted(weight))
        self.total = row_weights(targets, ignore_index, weight, lse.dtype).sum()
        self.save(rows, targets, lse, weight)
        out_shape = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
        return reduce_loss(xp, loss, self.total, reduction, out_shape).astype(x.dtype, copy=False)

    def backward(self, gy):
        rows, targets, lse, weight = self.saved
        g = self.xp.empty_like(lse)
        g[...] = spread_loss(self.xp, gy, self.total, self.reduction)
        run = by_numpy_backward
        if weight is None:
            run = pick(by_kernel_backward, by_numpy_backward, rows)
        gx = run(g, rows, lse, targets, *self.options, **weighted(weight))
        return unclass_rows(gx, self.x_shape), None, None


def weighted(weight):
    return {} if weight is None else {"weight": weight}


def row_weights(target, ignored, weight, dtype):
    """Returns the weight of each row, (n,). The weight is 0 if the target of the row is ignored.
    Else it is the weight of the target's class, or 1 if `weight` is None."""
    counts = target != ignored
    return counts.astype(dtype) if weight is None else counts * weight[target * counts]


def by_numpy(x, target, ignored=-100, smoothing=0.0, weight=None):
    """Returns (loss, lse) of the rows of x (n, C). Both are (n,), in the dtype of the sums."""
    xp = backend.xp_of([x])
    x = scratch(x.astype(backend.accumulate_dtype(x.dtype), copy=False), of=x)
    top = x.max(axis=1) if x.size else xp.zeros(len(x), x.dtype)
    e = scratch(x - top[:, None])
    picked = e[xp.arange(len(x)), target * (target != ignored)]
    over_classes = e.sum(axis=1) if weight is None else e @ weight
    log_sums = xp.log(xp.exp(e, out=e).sum(axis=1))
    loss = row_weights(target, ignored, weight, x.dtype) * (log_sums - picked)
    if smoothing:
        all_weights = x.shape[1] if weight is None else weight.sum()
        smooth = (target != ignored) * (all_weights * log_sums - over_classes)
        loss = (1 - smoothing) * loss + smoothing / x.shape[1] * smooth
    return loss, top + log_sums


def by_numpy_backward(g, x, lse, target, ignored=-100, smoothing=0.0, weight=None):
    """Returns gx (n, C). g: (n,), the gradients of the rows' losses."""
    xp = backend.xp_of([x])
    on_target = (1 - smoothing) * row_weights(target, ignored, weight, lse.dtype) * g
    # g is the second factor, because a bool array times a Python float gives float64.
    on_class = (target != ignored) * g * (smoothing / x.shape[1])
    all_weights = x.shape[1] if weight is None else weight.sum()
    gx = scratch(x - lse[:, None], "temporary")
    xp.exp(gx, out=gx)  # the softmax
    gx *= (on_target + on_class * all_weights)[:, None]
    gx[xp.arange(len(x)), target * (target != ignored)] -= on_target
    if smoothing:
        gx -= on_class[:, None] if weight is None else scratch(on_class[:, None] * weight)
    return gx


def by_kernel(x, target, ignored=-100, smoothing=0.0, rung=None, **form):
    """Returns (loss, lse) of each row. x (n, C), target (n,) of int64, both contiguous. Every
    target must be a class or `ignored`. rung, form: as in softmax.py."""
    xp, (n, n_classes) = row_kernels.backend_of(x), x.shape
    loss, lse = (xp.empty(n, backend.accumulate_dtype(x.dtype)) for _ in range(2))
    if n:
        args = loss, lse, x, target, n, n_classes, ignored, smoothing
        rung = rung or best_rung(xp, n_classes)
        row_kernels.launch(FILE, "cross_entropy", x, args, rung, form=form)
    return loss, lse


def by_kernel_backward(g, x, lse, target, ignored=-100, smoothing=0.0, rung=None, **form):
    """Returns gx (n, C). g: (n,), the gradients of the rows' losses, in the dtype of lse."""
    xp, (n, n_classes) = row_kernels.backend_of(x), x.shape
    gx = xp.empty_like(x)
    if x.size:
        args = gx, g, x, lse, target, n, n_classes, ignored, smoothing
        rung = rung or best_rung(xp, n_classes)
        row_kernels.launch(FILE, "cross_entropy_backward", x, args, rung, form=form)
    return gx


def best_rung(xp, n_classes):
    """Returns the best rung for the device. Rungs 4 and 5 do not store a row, so a row may have any
    length and begin at any address."""
    if xp is np:
        return "cpu"
    return 4 if n_classes <= row_kernels.MAX_KEPT else 5


def reduce_loss(xp, loss, total, reduction, shape):
    """Reduces the losses of the rows, (n,). With "none" returns the losses in the shape `shape`.
    With "sum" returns their sum. With "mean" returns their sum divided by `total`."""
    if reduction == "none":
        return loss.reshape(shape)
    if reduction == "sum":
        return loss.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return loss.sum() / xp.asarray(total)  # nan if the total weight is 0, as in PyTorch


def spread_loss(xp, gy, total, reduction):
    """Returns the gradient of each row's loss: (n,), or 0-d if it is the same for all rows."""
    if reduction == "none":
        return gy.reshape(-1)
    if reduction == "sum":
        return gy
    return gy / xp.where(total == 0, 1, total)  # if the total is 0, the gradient is 0, not nan


class NLLLoss(Function):
    """-x[target], where x has log probabilities. Saves the targets and the weights of the rows."""

    precision = "black"
    op = "nll_loss"

    def forward(self, x, target, weight, ignore_index, reduction):
        xp = self.xp
        target = check_targets(xp, "nll_loss", x, target, ignore_index)
        counts = target != ignore_index
        target = xp.where(counts, target, 0)
        rows = class_rows(x)
        check_class_weight("nll_loss", weight, rows.shape[1])
        dtype = backend.accumulate_dtype(x.dtype)
        w = counts.astype(dtype) if weight is None else counts * weight[target]
        loss = -w * xp.where(counts, rows[xp.arange(len(rows)), target], 0)
        self.total, self.reduction, self.x_shape = w.sum(), reduction, x.shape
        self.rows_shape = rows.shape
        self.save(target, w)
        out_shape = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
        return reduce_loss(xp, loss, self.total, reduction, out_shape).astype(x.dtype, copy=False)

    def backward(self, gy):
        target, w = self.saved
        gx = self.xp.zeros(self.rows_shape, w.dtype)
        g = spread_loss(self.xp, gy, self.total, self.reduction)
        gx[self.xp.arange(len(gx)), target] = -w * g
        return unclass_rows(gx, self.x_shape), None, None


def cross_entropy(input, target, weight=None, *, ignore_index=-100, reduction="mean",
                  label_smoothing=0.0):
    """Returns -log softmax(input)[target]. input: logits (N, C, d1, ...) or (C,), where C is the
    number of classes.

    target: integer class indices (N, d1, ...), or floating probabilities of input's shape.
    weight: (C,), one number for each class, or None.
    label_smoothing: a in [0, 1]. The target distribution becomes (1 - a) * target + a / C.
    reduction: "none", "sum" or "mean". "mean" divides by the sum of the weights of the targets that
        are not ignored. If targets are probabilities, it divides by the number of rows."""
    check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ValueError("cross_entropy: label_smoothing must be from 0 to 1; got "
                         f"{label_smoothing}")
    if backend.is_floating(target.dtype):
        return soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    return CrossEntropy.apply(input, target, weight, ignore_index=ignore_index,
                              label_smoothing=float(label_smoothing), reduction=reduction)


def soft_cross_entropy(input, target, weight, reduction, label_smoothing):
    """Cross entropy with probabilities as targets. This case is rare, so it is written with other
    ops and has no Function of its own. The target can have a gradient, too."""
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError("cross_entropy: a target of probabilities must have the input's shape, "
                         f"{tuple(input.shape)}; got {tuple(target.shape)}. A target of class "
                         "numbers must have an integer dtype")
    dim = 0 if input.ndim == 1 else 1
    n_classes = input.shape[dim]
    wanted = target
    if label_smoothing:
        wanted = add(mul(target, 1 - label_smoothing), label_smoothing / n_classes)
    if weight is not None:
        check_class_weight("cross_entropy", weight, n_classes)
        wanted = mul(wanted, weight.reshape(n_classes, *[1] * (input.ndim - dim - 1)))
    loss = mul(sum_(mul(wanted, log_softmax(input, dim)), dim=dim), -1.0)
    if reduction == "none":
        return loss
    total = sum_(loss)
    return total if reduction == "sum" else mul(total, 1 / max(math.prod(loss.shape), 1))


def nll_loss(input, target, weight=None, *, ignore_index=-100, reduction="mean"):
    """-input[target]. input: log probabilities (N, C, d1, ...). target: classes (N, d1, ...)."""
    check_reduction("nll_loss", reduction)
    return NLLLoss.apply(input, target, weight, ignore_index=ignore_index, reduction=reduction)
