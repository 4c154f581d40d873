"""Losses as modules, for code that passes a criterion around.

Test: tests/nn/test_loss.py   Ops: minidl/ops/cross_entropy.py, loss.py
"""

from minidl.nn import functional as F
from minidl.nn.module import Module


class CrossEntropyLoss(Module):
    """Input (N, C, ...) logits, target class ids (N, ...); averages over targets not ignored."""

    def __init__(self, ignore_index=-100, reduction="mean", label_smoothing=0.0):
        super().__init__()
        self.options = {"ignore_index": ignore_index, "reduction": reduction,
                        "label_smoothing": label_smoothing}

    def forward(self, input, target):
        return F.cross_entropy(input, target, **self.options)


class NLLLoss(Module):
    def __init__(self, ignore_index=-100, reduction="mean"):
        super().__init__()
        self.options = {"ignore_index": ignore_index, "reduction": reduction}

    def forward(self, input, target):
        return F.nll_loss(input, target, **self.options)


class _ElementLoss(Module):
    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, input, target):
        return self.op(input, target, reduction=self.reduction)


class MSELoss(_ElementLoss):
    op = staticmethod(F.mse_loss)


class L1Loss(_ElementLoss):
    op = staticmethod(F.l1_loss)


class BCEWithLogitsLoss(_ElementLoss):
    op = staticmethod(F.binary_cross_entropy_with_logits)


class BCELoss(_ElementLoss):
    op = staticmethod(F.binary_cross_entropy)


class _OneNumberLoss(_ElementLoss):
    """A loss with one number beside its reduction, called `option`."""

    def __init__(self, value, reduction):
        super().__init__(reduction)
        self.options = {self.option: value, "reduction": reduction}

    def forward(self, input, target):
        return self.op(input, target, **self.options)


class SmoothL1Loss(_OneNumberLoss):
    op, option = staticmethod(F.smooth_l1_loss), "beta"

    def __init__(self, reduction="mean", beta=1.0):
        super().__init__(beta, reduction)


class HuberLoss(_OneNumberLoss):
    op, option = staticmethod(F.huber_loss), "delta"

    def __init__(self, reduction="mean", delta=1.0):
        super().__init__(delta, reduction)


class KLDivLoss(_OneNumberLoss):
    op, option = staticmethod(F.kl_div), "log_target"

    def __init__(self, reduction="mean", log_target=False):
        super().__init__(log_target, reduction)
