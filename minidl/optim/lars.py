"""LARS: SGD with momentum, where the rate of each layer is proportional to the layer's length.

The plain form: minidl/plain/large_batch.py. This file adds options, and kernels that update all
layers in one pass. The parts of a layer may be on several ranks (layerwise.py).

    local = trust |w| / (|g| + decay |w| + eps)          the rate of a layer is lr * local

`trust` is 0.001. So a step with lr 1 changes a layer by about 0.001 of its length. Usual values of
lr are 1 to 30.

    trust_coefficient    `trust`, the paper's eta
    eps         a number that is added to the divisor
    clip        if True, the rate is min(local, lr) and not lr * local, as in LARC of apex
    adapt       if False, local is 1. This is SGD with momentum. Use it for biases and the weights
                of norms, in a separate parameter group

Other implementations differ. Chainer's LARS has no trust coefficient. To get the same rates in
Chainer, multiply lr by the coefficient. Paddle's CPU kernel adapts only if decay > 0. minidl's LARS
adapts whenever |w| and |g| are not 0.

Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888).
Test: tests/optim/test_layerwise.py   Tutorial: tutorials/18_large_batch.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import xp_of
from minidl.cuda import grad_norm
from minidl.optim import sgd
from minidl.optim.layerwise import Layerwise, ratio_of, square_sums
from minidl.optim.optimizer import late

if TYPE_CHECKING:
    from minidl.hints import Parameters


class LARS(Layerwise):
    """State for each parameter: momentum_buffer, 4 bytes for each float32 weight."""

    state_arrays = ("momentum_buffer",)
    kernels = (sgd.KERNEL,
               ("cpu/grad_norm.cu", "sum_squares_chunks", np.float32, {"ACC": "float"}),
               ("cpu/grad_norm.cu", "sum_squares_chunks", None, {"ACC": "float"}),
               ("grad_norm.cu", "chunk_sums", np.float32, {"ACC": "float"}))

    def __init__(self, params: Parameters, lr: float = 1.0, momentum: float = 0.9,
                 weight_decay: float = 5e-4, trust_coefficient: float = 1e-3, eps: float = 0.0,
                 clip: bool = False, adapt: bool = True):
        if min(lr, momentum, weight_decay, trust_coefficient, eps) < 0:
            raise ValueError("LARS wants lr, momentum, weight_decay, trust_coefficient, eps >= 0; "
                             f"got lr={lr}, momentum={momentum}, weight_decay={weight_decay}, "
                             f"trust_coefficient={trust_coefficient}, eps={eps}")
        super().__init__(params, dict(
            lr=lr, momentum=momentum, weight_decay=weight_decay, eps=eps, clip=clip, adapt=adapt,
            trust_coefficient=trust_coefficient))

    def kernel(self, ws, gs, arrays, steps, group, join, unscale, low, skip):
        """Computes the norms in one pass over w and g, then runs SGD's kernel with lr 1. The rates
        of LARS are inside the velocity: v = momentum * v + rate * gradient, with one rate for each
        tensor."""
        unscale, factor = late(unscale)
        g2 = grad_norm.square_sums(gs) * unscale**2
        if factor is not None and gs:
            g2 *= factor.astype(g2.dtype)**2
        rates = self.rates(*join(grad_norm.square_sums(ws), g2), group)
        xp = xp_of([rates])
        keep_take = xp.stack([xp.full_like(rates, group["momentum"]), rates], 1)
        sgd.by_kernel(ws, gs, arrays[0], lr=1.0, momentum=group["momentum"], unscale=unscale,
                      low=low, weight_decay=group["weight_decay"], skip=skip, factor=factor,
                      rates=keep_take.astype(ws[0].dtype))

    def plain(self, ws, gs, arrays, steps, group, join):
        rates = self.rates(*join(square_sums(ws), square_sums(gs)), group)
        for w, g, v, rate in zip(ws, gs, arrays[0], rates, strict=True):
            v *= group["momentum"]
            v += rate.astype(w.dtype) * (g + group["weight_decay"] * w)
            w -= v

    @staticmethod
    def rates(w2, g2, group):
        """Returns the rate of each tensor, float64: lr * local, by the formula at the top of this
        file. w2, g2: the squared norms |w|^2 and |g|^2."""
        xp, lr = xp_of([w2]), group["lr"]
        if not group["adapt"]:
            return xp.full_like(w2, lr)
        length, slope = xp.sqrt(w2), xp.sqrt(g2)
        divisor = xp.where(slope > 0, slope + group["weight_decay"] * length + group["eps"], 0.0)
        local = ratio_of(group["trust_coefficient"] * length, divisor)
        return xp.minimum(local, lr) if group["clip"] else lr * local
