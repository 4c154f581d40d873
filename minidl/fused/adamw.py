"""AdamW and Adam in one pass over memory, all parameters in one launch.

    m = b1 m + (1 - b1) g       v = b2 v + (1 - b2) g^2
    w = (1 - lr decay) w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

28 bytes move per parameter (read w, g, m, v; write w, m, v) where the op-by-op update of
minidl/optim/adam.py moves about 130. With fp16 parameters w is their fp32 master copy, and the
fp16 copy is written in the same pass.

Kernel: kernels/adamw.cu   Test: tests/fused/test_adamw.py   Tutorial: tutorials/03_kernel_tour.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, on_device, over_chunks, pointers, same_sizes

# ---- 1 reference ----


def reference(w, g, m, v, *, step, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
              decoupled=True, unscale=1.0):
    """(w, m, v) after one step, as new arrays."""
    b1, b2 = betas
    g = g.astype(w.dtype) * unscale
    if not decoupled:
        g = g + weight_decay * w
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    shrink = 1 - lr * weight_decay if decoupled else 1
    w = shrink * w - lr / (1 - b1**step) * (m / (np.sqrt(v) / math.sqrt(1 - b2**step) + eps))
    return w, m, v


# ---- 2 launch ----


def adamw(weights, grads, exp_avgs, exp_avg_sqs, steps, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
          weight_decay=0.01, decoupled=True, unscale=1.0, low=None, skip=None, factor=None):
    """One step for lists of arrays, in place.

    weights, exp_avgs, exp_avg_sqs:  float32 (or all float64), contiguous.
    grads:    of the weights' dtype, or all float16.
    steps:    for each array how many updates it has seen, this one included; or an int32 array of
              how many before, on the GPU, which counts on unless it skips.
    unscale:  the gradients' factor, 1 / loss scale.
    low:      fp16 arrays that get the new weights, or None.
    skip:     (1,) int32; where it is not 0 nothing changes. minidl.cuda.unscale_check makes it.
    factor:   (1,) of the weights' dtype, a second factor of the gradients: one that the GPU has
              found (minidl/precision/loss_scale.py)."""
    if not weights:
        return
    lists = dict(weights=weights, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs)
    xp = backend.xp_of([*weights, *grads], "adamw")
    sizes = same_sizes("adamw", *lists.values(), *([low] if low is not None else []))
    if len(steps) != len(sizes):
        raise ValueError(f"adamw: {len(sizes)} arrays, but {len(steps)} step counts")
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
