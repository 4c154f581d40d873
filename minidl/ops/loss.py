"""Losses between two tensors of equal shapes, element by element.

`reduction` is "none" (one value for each element), "sum" or "mean". Sums are computed at least in
float32. Losses of classes are in cross_entropy.py.   Test: tests/ops/test_loss.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.ops.activations import logistic

BLOCK = 1024  # BLAS sums this number of squares in one call, in float32


def check_reduction(op, reduction):
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{op}: reduction must be 'none', 'mean' or 'sum'; got {reduction!r}")


class ElementLoss(Function):
    """The base class of losses between two tensors of equal shapes. It reduces the losses of the
    elements, and spreads the gradient over the elements."""
    precision = "black"

    def reduced(self, loss, dtype, reduction):
        if reduction == "none":
            self.reduction = reduction
            return loss.astype(dtype, copy=False)
        total = loss.sum(dtype=backend.accumulate_dtype(dtype))
        return self.total(total, loss.size, dtype, reduction)

    def total(self, total, n, dtype, reduction):
        """Returns the loss of n values whose sum is `total`: their mean if reduction is "mean",
        else `total`. Keeps n and reduction for backward."""
        self.reduction, self.n, work = reduction, n, total.dtype
        if reduction == "mean":
            with np.errstate(invalid="ignore"):
                total = total / self.xp.asarray(n, work)  # nan if there are no elements
        return total.astype(dtype)

    def spread(self, gy):
        return gy / gy.dtype.type(max(self.n, 1)) if self.reduction == "mean" else gy


class MSELoss(ElementLoss):
    """(a - b)^2. Saves the difference."""
    op = "mse_loss"
    promotes = "same"

    def forward(self, a, b, reduction):
        d = a - b
        self.save(d)
        if reduction == "none" or self.xp is not np or d.dtype == np.float16:
            return self.reduced(d * d, d.dtype, reduction)
        return self.total(sum_of_squares(d), d.size, d.dtype, reduction)

    def backward(self, gy):
        (d,) = self.saved
        g = 2 * self.spread(gy) * d
        return g, (-g if self.needs[1] else None)


def sum_of_squares(d):
    """Returns the sum of the squares of d, in the dtype of d. Makes no array of the squares. BLAS
    sums the squares of each block, and NumPy adds the sums of the blocks pairwise. This takes a
    third of the time of (d * d).sum(), and is equally exact."""
    flat = d.reshape(-1)
    n = flat.size // BLOCK * BLOCK
    blocks, rest = flat[:n].reshape(-1, BLOCK), flat[n:]
    return np.vecdot(blocks, blocks).sum() + np.vecdot(rest, rest)


class L1Loss(ElementLoss):
    """|a - b|. The gradient is 0 where a and b are equal. Saves the sign of a - b."""
    promotes = "same"

    def forward(self, a, b, reduction):
        d = a - b
        self.save(self.xp.sign(d))
        return self.reduced(self.xp.abs(d), d.dtype, reduction)

    def backward(self, gy):
        (sign,) = self.saved
        g = self.spread(gy) * sign
        return g, (-g if self.needs[1] else None)


class Huber(ElementLoss):
    """d^2 / 2 where |d| < delta, else delta (|d| - delta / 2), with d = a - b. The result is
    multiplied by scale. Saves d."""
    promotes = "same"

    def forward(self, a, b, delta, scale, reduction):
        self.delta, self.scale = delta, scale
        d = a - b
        self.save(d)
        size = self.xp.abs(d)
        loss = self.xp.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta)) * scale
        return self.reduced(loss, d.dtype, reduction)

    def backward(self, gy):
        (d,) = self.saved
        slope = self.xp.clip(d, -self.delta, self.delta) * self.scale
        g = self.spread(gy) * slope
        return g, (-g if self.needs[1] else None)


class KLDiv(ElementLoss):
    """t (log t - x), and 0 where t is 0. x contains logarithms. If log_target is True, t also
    contains logarithms: then the loss is e^t (t - x)."""
    op = "kl_div"
    promotes = "same"

    def forward(self, x, t, log_target, reduction):
        xp, self.log_target = self.xp, log_target
        work = backend.accumulate_dtype(x.dtype)
        dtype, x, t = x.dtype, x.astype(work, copy=False), t.astype(work, copy=False)
        self.save(x if self.needs[1] else None, t)
        if log_target:
            return self.reduced(xp.exp(t) * (t - x), dtype, reduction)
        log_t = xp.log(xp.where(t == 0, 1, t))
        return self.reduced(t * log_t - t * x, dtype, reduction)

    def backward(self, gy):
        x, t = self.saved
        g = self.spread(gy.astype(t.dtype, copy=False))
        if self.log_target:
            e = self.xp.exp(t)
            return -e * g, (e * (t - x + 1) * g if self.needs[1] else None)
        gt = None
        if self.needs[1]:
            gt = self.xp.where(t == 0, 0, self.xp.log(self.xp.where(t == 0, 1, t)) + 1 - x) * g
        return -t * g, gt


class BCEWithLogits(ElementLoss):
    """w * [(1 - t) x + l softplus(-x)], where l = 1 + (pos_weight - 1) t. It is the cross entropy
    of the probability sigmoid(x), in a form in which exp cannot overflow. Saves x, t and the
    weights."""
    op = "binary_cross_entropy_with_logits"

    def forward(self, x, t, w, pos_weight, reduction):
        dtype, work = x.dtype, backend.accumulate_dtype(x.dtype)
        x, t = x.astype(work, copy=False), t.astype(work, copy=False)
        self.save(x, t, w, pos_weight)
        loss = self.xp.logaddexp(-x, self.xp.zeros((), work))
        if pos_weight is not None:
            loss *= 1 + (pos_weight - 1) * t
        loss += (1 - t) * x
        if w is not None:
            loss = loss * w
        return self.reduced(loss, dtype, reduction)

    def backward(self, gy):
        x, t, w, pos_weight = self.saved
        g = self.spread(gy.astype(x.dtype, copy=False))
        g = g if w is None else g * w
        positive = 1 if pos_weight is None else 1 + (pos_weight - 1) * t
        gx = ((1 - t) - positive * logistic(self.xp, -x)) * g
        gt = None
        if self.needs[1]:
            gt = -x * g
            if pos_weight is not None:
                gt += (pos_weight - 1) * self.xp.logaddexp(-x, self.xp.zeros((), x.dtype)) * g
        return gx, gt, None, None


class BCE(ElementLoss):
    """-w [t log p + (1 - t) log(1 - p)]. Logarithms below -100 become -100. Saves p, t and w."""
    op = "binary_cross_entropy"
    precision = "banned"
    remedy = "binary_cross_entropy_with_logits, which takes the input of the sigmoid"

    def forward(self, p, t, w, reduction):
        xp, dtype, work = self.xp, p.dtype, backend.accumulate_dtype(p.dtype)
        p, t = p.astype(work, copy=False), t.astype(work, copy=False)
        if p.size and not (p.min() >= 0 and p.max() <= 1):
            raise ValueError(f"binary_cross_entropy: wants probabilities from 0 to 1; got numbers "
                             f"from {p.min()} to {p.max()}. For logits use "
                             "binary_cross_entropy_with_logits")
        self.save(p, t, w)
        with np.errstate(divide="ignore"):
            log_p, log_q = xp.maximum(xp.log(p), -100), xp.maximum(xp.log1p(-p), -100)
        loss = -(t * log_p + (1 - t) * log_q)
        return self.reduced(loss if w is None else loss * w, dtype, reduction)

    def backward(self, gy):
        p, t, w = self.saved
        g = self.spread(gy.astype(p.dtype, copy=False))
        g = g if w is None else g * w
        gp = (p - t) / self.xp.maximum(p * (1 - p), 1e-12) * g
        gt = (self.xp.log1p(-p) - self.xp.log(p)) * g if self.needs[1] else None
        return gp, gt, None


def mse_loss(input, target, *, reduction="mean"):
    """(input - target)^2, reduced by `reduction`. Raises ValueError if the shapes differ."""
    _compare("mse_loss", input, target, reduction)
    return MSELoss.apply(input, target, reduction=reduction)


def l1_loss(input, target, *, reduction="mean"):
    """|input - target|, reduced by `reduction`. Raises ValueError if the shapes differ."""
    _compare("l1_loss", input, target, reduction)
    return L1Loss.apply(input, target, reduction=reduction)


def huber_loss(input, target, *, reduction="mean", delta=1.0):
    """(input - target)^2 / 2 where |input - target| < delta. Beyond delta the loss is a line of
    slope delta, so that a single outlier has a limited effect. Source: Huber 1964."""
    _compare("huber_loss", input, target, reduction)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be above 0, got {delta}")
    return Huber.apply(input, target, delta=float(delta), scale=1.0, reduction=reduction)


def smooth_l1_loss(input, target, *, reduction="mean", beta=1.0):
    """huber_loss with delta=beta, divided by beta. So the slope beyond beta is 1. With beta=0 it is
    l1_loss."""
    _compare("smooth_l1_loss", input, target, reduction)
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    if beta == 0:
        return L1Loss.apply(input, target, reduction=reduction)
    beta = float(beta)
    return Huber.apply(input, target, delta=beta, scale=1 / beta, reduction=reduction)


def kl_div(input, target, *, reduction="mean", log_target=False):
    """target (log target - input): how much the distribution `target` differs from the distribution
    exp(input).

    log_target: if True, `target` contains logarithms, as `input` does.
    reduction: "batchmean" divides the sum by the number of rows, as the definition does. "mean"
    divides the sum by the number of elements."""
    per_row = reduction == "batchmean"
    _compare("kl_div", input, target, "sum" if per_row else reduction)
    y = KLDiv.apply(input, target, log_target=log_target,
                    reduction="sum" if per_row else reduction)
    return y / max(input.shape[0], 1) if per_row and input.ndim else y


def binary_cross_entropy_with_logits(input, target, weight=None, *, reduction="mean",
                                     pos_weight=None):
    """-[t log s + (1 - t) log(1 - s)], where s = sigmoid(input) and t = target. weight multiplies
    the losses, and pos_weight multiplies the term t log s. weight and pos_weight broadcast and get
    no gradient."""
    _compare("binary_cross_entropy_with_logits", input, target, reduction)
    return BCEWithLogits.apply(input, target, weight, pos_weight, reduction=reduction)


def binary_cross_entropy(input, target, weight=None, *, reduction="mean"):
    """-[t log p + (1 - t) log(1 - p)], where p = input is a probability and t = target. If you have
    logits, use binary_cross_entropy_with_logits, which is exact for large logits. Under autocast
    this function raises an error. binary_cross_entropy_with_logits also runs under autocast."""
    _compare("binary_cross_entropy", input, target, reduction)
    return BCE.apply(input, target, weight, reduction=reduction)


def _compare(op, input, target, reduction):
    """Raises ValueError if the shapes differ, or if `reduction` is unknown. Without the check of
    the shapes, (N,) and (N, 1) broadcast to N * N pairs. This is usually a mistake, but PyTorch
    only gives a warning."""
    check_reduction(op, reduction)
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(f"{op}: input {tuple(input.shape)}, target {tuple(target.shape)}; want "
                         "equal shapes. Call .expand or .reshape on one of the tensors")
