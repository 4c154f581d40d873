"""Stochastic gradient descent with momentum.

The plain form: minidl/plain/optimizers.py. This file adds weight decay, dampening and Nesterov's
form:

    g = grad + weight_decay * w
    v = momentum * v + (1 - dampening) * g         (v = g at the first step)
    w = w - lr * v                                 nesterov: w - lr * (g + momentum * v)

This is PyTorch's form: the learning rate multiplies the velocity v, not the gradient inside v. If
kernels can run, `by_kernel` updates all parameters in one launch and one pass over memory. It moves
20 bytes for each weight with momentum, and 12 without. NumPy's operations move 60 bytes or more.

Source: Sutskever, Martens, Dahl, Hinton 2013.
Kernels: kernels/sgd.cu; on a CPU kernels/cpu/sgd.cu
Test: tests/optim/test_optimizer.py, test_sgd_kernel.py
Tutorial: tutorials/31_optimizers.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, on_device, over_chunks, pointers, same_sizes
from minidl.optim.optimizer import Optimizer, fusable, late, low_arrays

if TYPE_CHECKING:
    from minidl.hints import Parameters

KERNEL = "cpu/sgd.cu", "sgd_chunks", None, {"W": "float"}


class SGD(Optimizer):
    """With momentum, the state of each parameter has momentum_buffer, 4 bytes for each float32
    weight. Without momentum there is no state."""

    def __init__(self, params: Parameters, lr: float = 1e-3, momentum: float = 0.0,
                 dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, *,
                 maximize: bool = False):
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs momentum > 0 and dampening = 0, got momentum "
                             f"{momentum}, dampening {dampening}")
        if min(lr, momentum, weight_decay) < 0:
            raise ValueError("SGD wants lr, momentum and weight_decay >= 0; got "
                             f"lr={lr}, momentum={momentum}, weight_decay={weight_decay}")
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening,
                                      weight_decay=weight_decay, nesterov=nesterov,
                                      maximize=maximize))

    def update_group(self, params, grads, group, unscale, skip=None):
        if not fusable(params, grads, KERNEL):
            return super().update_group(params, grads, group, unscale, skip)
        if group["dampening"] and skip is not None and bool(skip):
            return  # a skipped step must not count as the first step, which has no dampening
        options = {k: group[k] for k in ("lr", "momentum", "dampening", "weight_decay", "nesterov")}
        states = [self.state.setdefault(p, {}) for p in params]
        first = ["momentum_buffer" not in s for s in states]
        velocities = [s.setdefault("momentum_buffer", p._xp.zeros_like(p.array))
                      for p, s in zip(params, states)] if group["momentum"] else None
        low = low_arrays(self.low, params, grads)
        unscale, factor = late(unscale)
        arrays = [p.array for p in params]
        by_kernel(arrays, grads, velocities, first, **options, unscale=unscale, low=low, skip=skip,
            factor=factor)
        if low is None:
            self.write_low(params)

    def update(self, p, grad, state, group):
        momentum = group["momentum"]
        if group["weight_decay"]:
            grad = grad + group["weight_decay"] * p.array
        if momentum:
            v = state.get("momentum_buffer")
            if v is None:
                v = state["momentum_buffer"] = p._xp.array(grad)  # copied, as v changes in place
            else:
                v *= momentum
                v += (1 - group["dampening"]) * grad if group["dampening"] else grad
            grad = grad + momentum * v if group["nesterov"] else v
        p.array -= group["lr"] * grad


def by_kernel(weights, grads, velocities=None, first=(), *, lr=1e-3, momentum=0.0, dampening=0.0,
        weight_decay=0.0, nesterov=False, unscale=1.0, low=None, skip=None, factor=None,
        rates=None):
    """Updates lists of arrays in place: one step of SGD, in one launch.

    weights, velocities:  contiguous arrays, all float32 or all float64. velocities: None without
              momentum.
    grads:    arrays of the weights' dtype, or all float16.
    first:    one bool for each array. If it is True, this is the first step of the array, and its
              velocity becomes the gradient. The old velocity must be finite, such as zeros, because
              the kernel multiplies it by 0.
    rates:    None, or an array (n_arrays, 2) of the weights' dtype that is used instead of `first`.
              Row i is (a, b) in v = a * v + b * gradient for array i. lars.py uses these rates.
    unscale, low, skip, factor:  as in adam.py."""
    if not weights:
        return
    if rates is not None:
        momentum = momentum or 1.0  # not 0, because momentum 0 means no velocities
    if bool(momentum) != (velocities is not None):
        given = "not given" if velocities is None else "given"
        raise ValueError("sgd wants velocities only if momentum is not 0; "
                         f"got momentum={momentum}, velocities {given}")
    xp = backend.xp_of([*weights, *grads], "sgd")
    sizes = same_sizes("sgd", weights, grads, *(a for a in (velocities, low) if a is not None))
    if momentum and rates is None and len(first) != len(sizes):
        raise ValueError(f"sgd wants one bool in `first` for each of {len(sizes)} arrays; got "
                         f"{len(first)}")
    wide, narrow = weights[0].dtype, grads[0].dtype
    grads = [contiguous(xp, g) for g in grads]
    ws = pointers(xp, weights, wide, "sgd: weights", written=True)
    gs = pointers(xp, grads, narrow, "sgd: grads")
    vs = lows = None
    if momentum:
        vs = pointers(xp, velocities, wide, "sgd: velocities", written=True)
    if momentum and rates is None:
        rates = [(0.0, 1.0) if f else (momentum, 1 - dampening) for f in first]
        rates = on_device(xp, np.array(rates, wide))
    if low is not None:
        lows = pointers(xp, low, narrow, "sgd: low", written=True)
    args = ws, gs, vs, lows, rates, skip, factor, lr, momentum, weight_decay, unscale, int(nesterov)
    over_chunks("sgd.cu", "sgd", narrow, xp, sizes, args, W=dispatch.C_TYPES[wide])
