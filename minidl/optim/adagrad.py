"""Adagrad: the learning rate of a weight falls while the sum of its squared gradients grows.

    s = s + g^2            w = w - lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)

A weight that rarely gets a gradient, such as the embedding of a rare word, keeps large steps.
Source: Duchi, Hazan, Singer 2011.     Test: tests/optim/test_other_optimizers.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minidl.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from minidl.hints import Parameters


class Adagrad(Optimizer):
    """State for each parameter: step and sum. In the formula at the top of this file, step is t,
    and sum is s."""

    def __init__(self, params: Parameters, lr: float = 1e-2, lr_decay: float = 0.0,
                 weight_decay: float = 0.0, initial_accumulator_value: float = 0.0,
                 eps: float = 1e-10, *, maximize: bool = False):
        if min(lr, lr_decay, weight_decay, initial_accumulator_value, eps) < 0:
            raise ValueError(f"Adagrad: no argument may be negative; got lr {lr}, lr_decay "
                             f"{lr_decay}, weight_decay {weight_decay}, initial_accumulator_value "
                             f"{initial_accumulator_value}, eps {eps}")
        super().__init__(params, dict(
            lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, maximize=maximize))

    def update(self, p, grad, state, group):
        xp = p._xp
        if not state:
            start = group["initial_accumulator_value"]
            state.update(step=0, sum=xp.full_like(p.array, start))
        state["step"] += 1
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p.array
        state["sum"] += grad * grad
        lr = group["lr"] / (1 + (state["step"] - 1) * group["lr_decay"])
        p.array -= lr * (grad / (xp.sqrt(state["sum"]) + group["eps"]))
