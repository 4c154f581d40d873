"""Adadelta: an average of earlier steps gives the step the units of the weight.

    v = rho v + (1 - rho) g^2              moving average of the squared gradients
    d = sqrt(u + eps) / sqrt(v + eps) g    the step
    u = rho u + (1 - rho) d^2              moving average of the squared steps
    w = w - lr d

Source: Zeiler 2012 (arXiv 1212.5701). The paper has no lr; PyTorch's default lr of 1 gives the
paper's step.
Test: tests/optim/test_other_optimizers.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from minidl.hints import Parameters


class Adadelta(Optimizer):
    """State for each parameter: step, square_avg and acc_delta. In the formulas at the top of this
    file, square_avg is v, and acc_delta is u."""

    def __init__(self, params: Parameters, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0, *, maximize: bool = False):
        if min(lr, eps, weight_decay) < 0 or not 0 <= rho <= 1:
            raise ValueError("Adadelta wants lr, eps, weight_decay >= 0 and rho in [0, 1]; "
                             f"got lr {lr}, rho {rho}, eps {eps}, weight_decay {weight_decay}")
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay,
                                      maximize=maximize))

    def update(self, p, grad, state, group):
        xp, rho, eps = p._xp, group["rho"], group["eps"]
        if not state:
            state.update(step=0, square_avg=xp.zeros_like(p.array),
                         acc_delta=xp.zeros_like(p.array))
        state["step"] += 1
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p.array
        v, u = state["square_avg"], state["acc_delta"]
        v *= rho
        v += (1 - rho) * grad * grad
        step = xp.sqrt(u + eps) / xp.sqrt(v + eps) * grad
        u *= rho
        u += (1 - rho) * step * step
        p.array -= group["lr"] * step
