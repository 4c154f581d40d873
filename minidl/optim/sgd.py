"""Stochastic gradient descent with momentum.

    g = grad + weight_decay * w
    v = momentum * v + (1 - dampening) * g         (v = g at the first step)
    w = w - lr * v                                 nesterov: w - lr * (g + momentum * v)

This is PyTorch's form: the learning rate multiplies the velocity, not the gradient inside it.
Source: Sutskever, Martens, Dahl, Hinton 2013.   Test: tests/optim/test_optimizer.py
"""

from minidl.fused.sgd import sgd
from minidl.optim.optimizer import Optimizer, fusable, late, low_arrays

KERNEL = "sgd.cu", "sgd_chunks", None, {"W": "float"}


class SGD(Optimizer):
    """State per parameter: momentum_buffer (4 bytes a float32 weight), only with momentum."""

    def __init__(self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0,
                 nesterov=False, *, maximize=False):
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs momentum > 0 and dampening = 0, got momentum "
                             f"{momentum}, dampening {dampening}")
        if min(lr, momentum, weight_decay) < 0:
            raise ValueError("lr, momentum and weight_decay must not be negative, got "
                             f"{lr}, {momentum}, {weight_decay}")
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening,
                                      weight_decay=weight_decay, nesterov=nesterov,
                                      maximize=maximize))

    def update_group(self, params, grads, group, unscale, skip=None):
        if not fusable(params, grads, KERNEL):
            return super().update_group(params, grads, group, unscale, skip)
        if group["dampening"] and skip is not None and bool(skip):
            return  # which step is the first would be another one, and dampening spares the first
        options = {k: group[k] for k in ("lr", "momentum", "dampening", "weight_decay", "nesterov")}
        states = [self.state.setdefault(p, {}) for p in params]
        first = ["momentum_buffer" not in s for s in states]
        velocities = [s.setdefault("momentum_buffer", p._xp.zeros_like(p.array))
                      for p, s in zip(params, states)] if group["momentum"] else None
        low = low_arrays(self.low, params, grads)
        unscale, factor = late(unscale)
        arrays = [p.array for p in params]
        sgd(arrays, grads, velocities, first, **options, unscale=unscale, low=low, skip=skip,
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
                v = state["momentum_buffer"] = p._xp.array(grad)  # a copy
            else:
                v *= momentum
                v += (1 - group["dampening"]) * grad if group["dampening"] else grad
            grad = grad + momentum * v if group["nesterov"] else v
        p.array -= group["lr"] * grad
