"""LAMB in two passes over memory, all parameters in one launch each.

    1   m, v, and of each tensor |w|^2 and |r|^2      r = m^ / (sqrt(v^) + eps) + decay w
    2   w = w - step r                                step = lr |w| / |r|, one for each tensor

40 bytes a parameter where the op-by-op update of minidl/optim/lamb.py moves about 170. Between the
two the caller makes steps of the norms; under ZeRO from all ranks' (minidl/optim/layerwise.py).

Kernel: kernels/lamb.cu   Test: tests/fused/extra/test_lamb.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch, grad_norm
from minidl.cuda.launch import chunk_list, contiguous, over_chunks, pointers, same_sizes

FILE = "lamb.cu"

# ---- 1 reference ----


def reference(w, g, m, v, *, step, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
    """(w, m, v) after one step of the paper's LAMB, as new arrays."""
    b1, b2 = betas
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    r = m / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps) + weight_decay * w
    lengths = [math.sqrt(float((a.astype(np.float64) ** 2).sum())) for a in (w, r)]
    ratio = lengths[0] / lengths[1] if all(lengths) else 1.0
    return w - lr * ratio * r, m, v


# ---- 2 launch ----


def moments(weights, grads, exp_avgs, exp_avg_sqs, rates, *, betas, eps, weight_decay,
            eps_inside_root=False, unscale=1.0, skip=None, factor=None):
    """New moments, in place; returns (|w|^2, |r|^2) of each array: float64, on the arrays' device.

    rates:    (arrays, 2), what undoes the start from zero: 1 / (1 - b1^t), 1 / sqrt(1 - b2^t)
    the rest: see minidl.fused.adamw."""
    if not weights:
        return np.zeros(0), np.zeros(0)
    lists = dict(weights=weights, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs)
    xp = backend.xp_of([*weights, *grads], "lamb")
    sizes = same_sizes("lamb", *lists.values())
    wide, narrow = weights[0].dtype, grads[0].dtype
    lists["grads"] = [contiguous(xp, g) for g in grads]
    tables = [pointers(xp, a, narrow if name == "grads" else wide, f"lamb: {name}",
                       written=name.startswith("exp")) for name, a in lists.items()]
    partial = xp.empty((len(chunk_list(tuple(sizes))), 2), wide)
    outside, inside = places(eps, eps_inside_root)
    b1, b2 = betas
    args = (partial, *tables, table(xp, rates, wide), skip, factor, b1, 1 - b1, b2, 1 - b2, inside,
            outside, weight_decay, unscale)
    over_chunks(FILE, "lamb_moments", narrow, xp, sizes, args, W=dispatch.C_TYPES[wide])
    sums = grad_norm.chunk_sums(partial, sizes)
    return sums[:, 0], sums[:, 1]


def update(weights, exp_avgs, exp_avg_sqs, rates, steps, *, eps, weight_decay,
           eps_inside_root=False, low=None, skip=None):
    """w -= step r, in place. steps: (arrays,). low: fp16 arrays that get the new weights."""
    if not weights:
        return
    xp = backend.xp_of(weights, "lamb")
    lows = [] if low is None else [low]
    sizes = same_sizes("lamb", weights, exp_avgs, exp_avg_sqs, *lows)
    wide = weights[0].dtype
    narrow = wide if low is None else low[0].dtype
    tables = [pointers(xp, a, wide, f"lamb: {name}", written=name == "weights")
              for name, a in (("weights", weights), ("m", exp_avgs), ("v", exp_avg_sqs))]
    low_table = None if low is None else pointers(xp, low, narrow, "lamb: low", written=True)
    outside, inside = places(eps, eps_inside_root)
    three = table(xp, xp.concatenate([rates, steps.reshape(-1, 1)], 1), wide)
    args = *tables, low_table, three, skip, inside, outside, weight_decay
    over_chunks(FILE, "lamb_update", narrow, xp, sizes, args, W=dispatch.C_TYPES[wide])


def table(xp, rates, dtype):
    """A contiguous array of the kernel's dtype on the arrays' device."""
    return xp.ascontiguousarray(rates.astype(dtype))


def places(eps, inside_root):
    """(eps beside the root, eps inside of it)."""
    return (0.0, eps) if inside_root else (eps, 0.0)
