"""RMSprop: divides each gradient by the root of a moving average of its square.

    v = alpha v + (1 - alpha) g^2
    w = w - lr * g / (sqrt(v) + eps)

    centered   v - m^2 replaces v in the root. m is a moving average of g
    momentum   b = momentum b + g / (sqrt(v) + eps), and then w = w - lr b

Source: Tieleman & Hinton 2012 (lecture 6.5); centered: Graves 2013 (arXiv 1308.0850).
Test: tests/optim/test_other_optimizers.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from minidl.hints import Parameters


class RMSprop(Optimizer):
    """State for each parameter: step and square_avg. With momentum there is also momentum_buffer,
    and with centered=True also grad_avg. In the formulas at the top of this file, square_avg is v,
    momentum_buffer is b, and grad_avg is m."""

    def __init__(self, params: Parameters, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False, *,
                 maximize: bool = False):
        if min(lr, alpha, eps, weight_decay, momentum) < 0:
            raise ValueError("RMSprop: no argument may be negative; got lr "
                             f"{lr}, alpha {alpha}, eps {eps}, weight_decay {weight_decay}, "
                             f"momentum {momentum}")
        super().__init__(params, dict(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay,
                                      momentum=momentum, centered=centered, maximize=maximize))

    def update(self, p, grad, state, group):
        xp, alpha = p._xp, group["alpha"]
        if not state:
            state.update(step=0, square_avg=xp.zeros_like(p.array))
        state["step"] += 1
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p.array
        v = state["square_avg"]
        v *= alpha
        v += (1 - alpha) * grad * grad
        if group["centered"]:
            m = state.setdefault("grad_avg", xp.zeros_like(p.array))
            m += (1 - alpha) * (grad - m)
            v = v - m * m
        step = grad / (xp.sqrt(v) + group["eps"])
        if group["momentum"]:
            b = state.setdefault("momentum_buffer", xp.zeros_like(p.array))
            b *= group["momentum"]
            b += step
            step = b
        p.array -= group["lr"] * step
