"""Losses as modules, for programs that pass a loss as an object.

Test: tests/nn/test_loss.py   Ops: minidl/ops/cross_entropy.py, loss.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl.nn import functional as F
from minidl.nn.module import Module

if TYPE_CHECKING:
    from minidl.hints import Array
    from minidl.tensor import Tensor


class _Loss(Module):
    """Calls `op`, a loss of nn.functional, with these options. The weights of the loss are buffers,
    so they move with the module to another device. reduction: "mean", "sum" or "none"."""

    def __init__(self, reduction="mean", weights=(), **options):
        super().__init__()
        self.options = {"reduction": reduction, **options}
        for name, weight in dict(weights).items():
            self.register_buffer(name, weight) if weight is not None else setattr(self, name, None)

    def forward(self, input: Array, target: Array) -> Tensor:
        return self.op(input, target, **self._buffers, **self.options)


class CrossEntropyLoss(_Loss):
    """Input: logits (N, C, ...). Target: class ids (N, ...). reduction="mean" averages over the
    targets that are not ignore_index."""

    op = staticmethod(F.cross_entropy)

    def __init__(self, weight: Array | None = None, *, ignore_index: int = -100,
                 reduction: str = "mean", label_smoothing: float = 0.0):
        super().__init__(reduction, {"weight": weight}, ignore_index=ignore_index,
                         label_smoothing=label_smoothing)


class NLLLoss(_Loss):
    op = staticmethod(F.nll_loss)

    def __init__(self, weight: Array | None = None, *, ignore_index: int = -100,
                 reduction: str = "mean"):
        super().__init__(reduction, {"weight": weight}, ignore_index=ignore_index)


class _ElementLoss(_Loss):
    def __init__(self, *, reduction: str = "mean"):
        super().__init__(reduction)


class MSELoss(_ElementLoss):
    op = staticmethod(F.mse_loss)


class L1Loss(_ElementLoss):
    op = staticmethod(F.l1_loss)


class BCEWithLogitsLoss(_Loss):
    op = staticmethod(F.binary_cross_entropy_with_logits)

    def __init__(self, weight: Array | None = None, *, reduction: str = "mean",
                 pos_weight: Array | None = None):
        super().__init__(reduction, {"weight": weight, "pos_weight": pos_weight})


class BCELoss(_Loss):
    op = staticmethod(F.binary_cross_entropy)

    def __init__(self, weight: Array | None = None, *, reduction: str = "mean"):
        super().__init__(reduction, {"weight": weight})


class SmoothL1Loss(_Loss):
    op = staticmethod(F.smooth_l1_loss)

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0):
        super().__init__(reduction, beta=beta)


class HuberLoss(_Loss):
    op = staticmethod(F.huber_loss)

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction, delta=delta)


class TripletMarginLoss(Module):
    """The mean of max(0, |anchor - positive| - |anchor - negative| + margin). |v| is the p-norm
    of v. The loss is 0 if each anchor is nearer to its positive than to its negative, by `margin`
    or more. Each of the three inputs is (N, D)."""

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
                 *, reduction: str = "mean"):
        super().__init__()
        self.options = dict(margin=margin, p=p, eps=eps, swap=swap, reduction=reduction)

    def forward(self, anchor: Array, positive: Array, negative: Array) -> Tensor:
        return F.triplet_margin_loss(anchor, positive, negative, **self.options)


class KLDivLoss(_Loss):
    op = staticmethod(F.kl_div)

    def __init__(self, *, reduction: str = "mean", log_target: bool = False):
        super().__init__(reduction, log_target=log_target)
