"""Muon: the momentum of a matrix is made nearly orthogonal before each step.

    b = b + (1 - mu) (g - b)                 a moving average of the gradients
    o = U V^T,  where b = U S V^T            sets all singular values to about 1
    w = (1 - lr decay) w - lr sqrt(max(1, rows / columns)) o

nesterov: o is computed from g + mu (b - g), not from b.

A gradient matrix has a few large singular values. SGD moves the weight in these few directions. The
weight hardly moves in other directions. U V^T is computed without an SVD, only with matrix products
(the method of Newton and Schulz):

    x = b / |b|,   5 times: x = 3.4445 x - 4.7750 (x x^T) x + 2.0315 (x x^T)^2 x

The polynomial is steep at 0, so few rounds are enough. The singular values do not converge to 1:
they end between 0.68 and 1.13. This file computes in float32, PyTorch in bfloat16. The results
differ by up to 4 %. Use Muon for the matrices of hidden layers, and AdamW for embeddings, biases
and the last layer.
Source: Jordan et al. 2024.      Test: tests/optim/test_muon.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minidl.backend import xp_of
from minidl.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minidl.hints import Parameters

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(Optimizer):
    """The Muon optimizer. All its parameters must be matrices. State for each parameter:
    momentum_buffer, which is b in the formulas at the top of this file.

    adjust_lr_fn: with None or "original", lr is multiplied by sqrt(max(1, rows / columns)). With
    "match_rms_adamw", lr is multiplied by 0.2 sqrt(max(rows, columns)), so that the learning rates
    of AdamW can be used."""

    def __init__(self, params: Parameters, lr: float = 1e-3, weight_decay: float = 0.1,
                 momentum: float = 0.95, nesterov: bool = True,
                 ns_coefficients: Sequence[float] = COEFFICIENTS, eps: float = 1e-7,
                 ns_steps: int = 5, adjust_lr_fn: str | None = None):
        if min(lr, weight_decay, momentum) < 0:
            raise ValueError("Muon wants lr, momentum and weight_decay >= 0; got "
                             f"lr={lr}, momentum={momentum}, weight_decay={weight_decay}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError("adjust_lr_fn must be None, 'original' or 'match_rms_adamw'; got "
                             f"{adjust_lr_fn!r}")
        super().__init__(params, dict(
            lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, eps=eps,
            ns_coefficients=ns_coefficients, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn))

    def add_param_group(self, group):
        super().add_param_group(group)
        for p in self.param_groups[-1]["params"]:
            if p.ndim != 2:
                raise ValueError(f"Muon wants matrices; got a parameter of shape "
                                 f"{tuple(p.shape)}. Give such parameters to a separate AdamW")
            if getattr(p, "part", None) is not None:
                raise ValueError(f"Muon wants whole matrices; got a slice {tuple(p.shape)} of a "
                                 "matrix that is divided among ranks (parallel/model/tensor.py). "
                                 "Use AdamW")

    def update(self, p, grad, state, group):
        mu, (rows, columns) = group["momentum"], p.shape
        b = state.setdefault("momentum_buffer", p._xp.zeros_like(p.array))
        b += (1 - mu) * (grad - b)
        ahead = grad + mu * (b - grad) if group["nesterov"] else b
        o = orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        factor = math.sqrt(max(1, rows / columns))
        if group["adjust_lr_fn"] == "match_rms_adamw":
            factor = 0.2 * math.sqrt(max(rows, columns))
        p.array *= 1 - group["lr"] * group["weight_decay"]
        p.array -= group["lr"] * factor * o


def orthogonal(g, coefficients=COEFFICIENTS, steps=5, eps=1e-7):
    """Returns the matrix g (n, m) with all singular values changed to about 1. The polynomial at
    the top of this file changes each singular value, but not the singular vectors."""
    a, b, c = coefficients
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g  # if x has fewer rows than columns, x x^T is smaller than x^T x
    xp = xp_of([g])
    x = x / xp.maximum(xp.sqrt((x * x).sum()), eps)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.T if tall else x
