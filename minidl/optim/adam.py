"""Adam and AdamW divide the step of a weight by the root of the weight's mean squared gradient.

The plain form: minidl/plain/optimizers.py. This file adds weight decay. Adam adds weight_decay * w
to g. AdamW shrinks the weight itself: w *= 1 - lr * weight_decay. So in AdamW the decay is not
divided by sqrt(v).

Memory: m and v take 8 bytes for each float32 weight. `update` is one step in plain NumPy. It moves
about 130 bytes for each weight. If kernels can run, `by_kernel` updates all parameters in one
launch and one pass over memory. It moves 28 bytes for each weight: reads of w, g, m, v, and writes
of w, m, v. If the parameters are fp16, w is their fp32 master copy. The same pass then also writes
the fp16 parameters.

Sources: Kingma & Ba 2014 (arXiv 1412.6980); Loshchilov & Hutter 2017 (arXiv 1711.05101).
Kernels: kernels/adamw.cu; on a CPU kernels/cpu/adamw.cu
Test: tests/optim/test_optimizer.py, test_adam_kernel.py
Tutorial: tutorials/31_optimizers.py, and for the kernel 03_kernel_tour.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, on_device, over_chunks, pointers, same_sizes
from minidl.optim.optimizer import Optimizer, fusable, late, low_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minidl.hints import Parameters

KERNEL = "cpu/adamw.cu", "adamw_chunks", None, {"W": "float"}


class Adam(Optimizer):
    """State for each parameter: step, exp_avg and exp_avg_sq. exp_avg is m, the moving average of
    the gradients. exp_avg_sq is v, the moving average of their squares. The step is an int. For
    parameters on a GPU the step is an array of one int in the GPU's memory, as in PyTorch. The GPU
    may skip an update without telling the host.

    amsgrad: if True, the state also has max_exp_avg_sq, the largest v so far. The step is divided
        by the root of this largest v (Reddi et al. 2018).
    maximize: if True, moves the weights so that the loss grows."""
    decoupled = False  # if True (AdamW), weight decay changes the weight, not the gradient

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, amsgrad: bool = False, *,
                 maximize: bool = False):
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError(f"{type(self).__name__} wants lr, eps, weight_decay >= 0 and betas in "
                             f"[0, 1); got lr {lr}, eps {eps}, weight_decay {weight_decay}, "
                             f"betas {betas}")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                      amsgrad=amsgrad, maximize=maximize))

    def update_group(self, params, grads, group, unscale, skip=None):
        if group.get("amsgrad") or not fusable(params, grads, KERNEL):
            return super().update_group(params, grads, group, unscale, skip)
        on_host = isinstance(grads[0], np.ndarray)
        states = [self.advance(p, self.state.setdefault(p, {}), on_host) for p in params]
        steps = [s["step"] for s in states]
        low = low_arrays(self.low, params, grads)
        options = {k: group[k] for k in ("lr", "betas", "eps", "weight_decay")}
        unscale, factor = late(unscale)
        by_kernel([p.array for p in params], grads,
              *([s[k] for s in states] for k in ("exp_avg", "exp_avg_sq")),
              steps if on_host else counted_together(params[0]._xp, steps, states), **options,
              decoupled=self.decoupled, unscale=unscale, low=low, skip=skip, factor=factor)
        if low is None:
            self.write_low(params)

    def advance(self, p, state, counts=True):
        """Returns the state of a parameter for its next step. The first call fills the state.
        counts: if True, this method adds 1 to the step count. If False, a kernel adds 1."""
        if not state:
            state.update(step=0, exp_avg=p._xp.zeros_like(p.array),
                         exp_avg_sq=p._xp.zeros_like(p.array))
        if counts:
            state["step"] = int(state["step"]) + 1
        return state

    def update(self, p, grad, state, group):
        xp, lr, decay, (b1, b2) = p._xp, group["lr"], group["weight_decay"], group["betas"]
        t = self.advance(p, state)["step"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if decay and self.decoupled:
            p.array *= 1 - lr * decay
        elif decay:
            grad = grad + decay * p.array
        m[...] = b1 * m + (1 - b1) * grad
        v[...] = b2 * v + (1 - b2) * (grad * grad)
        if group.get("amsgrad"):
            largest = state.setdefault("max_exp_avg_sq", xp.zeros_like(v))
            v = xp.maximum(largest, v, out=largest)
        denominator = xp.sqrt(v) / math.sqrt(1 - b2**t) + group["eps"]
        p.array -= lr / (1 - b1**t) * (m / denominator)


def counted_together(xp, steps, states):
    """Returns the step counts of some parameters as one int32 array on the GPU. A kernel adds 1 to
    each count. The `step` of each state becomes a view of this array. The array is rebuilt if it is
    missing, or if the set of parameters that have gradients has changed since the last step. To
    rebuild the array, the host waits for the GPU."""
    counts = getattr(steps[0], "base", None)
    if counts is None or counts.size != len(steps) or any(
            getattr(s, "base", None) is not counts for s in steps):
        table = on_device(xp, np.array([int(s) for s in steps], np.int32))
        counts = table.copy()  # other calls of on_device may share `table`, so it stays as it is
        for i, state in enumerate(states):
            state["step"] = counts[i]
    return counts


class AdamW(Adam):
    """Adam with decoupled weight decay. The default of weight_decay is 0.01."""
    decoupled = True

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.01, amsgrad: bool = False, *,
                 maximize: bool = False):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


def by_kernel(weights, grads, exp_avgs, exp_avg_sqs, steps, *, lr=1e-3, betas=(0.9, 0.999),
              eps=1e-8, weight_decay=0.01, decoupled=True, unscale=1.0, low=None, skip=None,
              factor=None):
    """Updates lists of arrays in place: one step of Adam or AdamW, in one launch.

    weights, exp_avgs, exp_avg_sqs:  contiguous arrays, all float32 or all float64.
    grads:    arrays of the weights' dtype, or all float16.
    steps:    a list with the number of updates of each array, this update included. On a GPU it may
              be an int32 array with the numbers before this update. The kernel then adds 1 to each
              number, unless it skips the update.
    unscale:  a factor for the gradients, such as 1 / loss scale.
    low:      float16 arrays that get a rounded copy of the new weights, or None.
    skip:     (1,) int32 or None. If the number is not 0, no array changes. See
              minidl.cuda.unscale_check.
    factor:   (1,) of the weights' dtype, or None. A second factor for the gradients, computed on
              the GPU (minidl/precision/loss_scale.py)."""
    if not weights:
        return
    lists = dict(weights=weights, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs)
    xp = backend.xp_of([*weights, *grads], "adamw")
    sizes = same_sizes("adamw", *lists.values(), *([low] if low is not None else []))
    if len(steps) != len(sizes):
        raise ValueError(f"adamw wants one step count for each of {len(sizes)} arrays; got "
                         f"{len(steps)}")
    wide, narrow = weights[0].dtype, grads[0].dtype
    lists["grads"] = [contiguous(xp, g) for g in grads]
    tables = [pointers(xp, a, narrow if name == "grads" else wide, f"adamw: {name}",
                       written=name != "grads") for name, a in lists.items()]
    lows = None if low is None else pointers(xp, low, narrow, "adamw: low", written=True)
    b1, b2 = betas
    if isinstance(steps, (list, tuple)):
        rates = [(lr / (1 - b1**t), 1 / math.sqrt(1 - b2**t)) for t in steps]
        rates = on_device(xp, np.array(rates, wide))
    else:
        rates, n = xp.empty((len(sizes), 2), wide), len(sizes)
        kernel = dispatch.kernel("adamw.cu", "adamw_rates", narrow, W=dispatch.C_TYPES[wide])
        kernel(-(-n // 32), 32, (rates, steps, skip, lr, b1, b2, n))
    shrink, l2 = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    args = *tables, lows, rates, skip, factor, b1, 1 - b1, b2, 1 - b2, eps, shrink, l2, unscale
    over_chunks("adamw.cu", "adamw", narrow, xp, sizes, args, W=dispatch.C_TYPES[wide])
