"""LAMB: a step in Adam's direction, with a length that is set for each layer.

The plain form: minidl/plain/large_batch.py. This file adds the variants of other libraries, and
kernels that update all layers in two passes. The parts of a layer may be on several ranks. With
LAMB the learning rate may grow with the batch. The paper trains BERT with 512 to 32768 samples a
step.

    r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w
    w = w - lr (|w| / |r|) r

    clamp            (least, most): limits of the ratio |w| / |r|. None means no limits, as in the
                     paper. DeepSpeed uses (0.01, 10)
    eps_inside_root  if True, divides by sqrt(v + eps); if False, by sqrt(v) + eps
    bias_correction  True is as in the paper, False is without correction. "step" is as in
                     DeepSpeed: r and the ratio use m and v without correction. Then the whole step,
                     including weight decay, is multiplied by sqrt(1 - b2^t) / (1 - b1^t)
    adapt            if False, the ratio is 1, as in AdamW. Use it for biases and the weights of
                     norms, in a separate parameter group. (In apex the ratio is 1 for groups with
                     weight_decay 0. The option use_nvlamb of apex changes this.)

apex also clips the norm of the gradients first. Here, call optim.clip_grad_norm_ to do this.

The kernels update all parameters in two passes over memory, with one launch each. The first pass
computes m, v and the squared lengths of w and r of each tensor. The second pass takes the step. The
two passes together move 40 bytes for each weight. NumPy's operations move about 170 bytes. Under
ZeRO a rank has parts of tensors, so between the passes the squared lengths are summed over ranks
(layerwise.py).

Source: You et al. 2019 (arXiv 1904.00962).
Kernels: kernels/lamb.cu; on a CPU kernels/cpu/lamb.cu
Test: tests/optim/test_layerwise.py, test_lamb_kernel.py
Tutorial: tutorials/18_large_batch.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.backend import xp_of
from minidl.cuda import dispatch, grad_norm
from minidl.cuda.launch import chunk_list, contiguous, over_chunks, pointers, same_sizes
from minidl.optim.adam import counted_together
from minidl.optim.layerwise import Layerwise, ratio_of, square_sums
from minidl.optim.optimizer import late

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from minidl.hints import Parameters

FILE = "lamb.cu"


class LAMB(Layerwise):
    """State for each parameter: step, exp_avg (m), exp_avg_sq (v), as in Adam."""

    state_arrays = ("exp_avg", "exp_avg_sq")
    kernels = ((f"cpu/{FILE}", "lamb_moments_chunks", None, {"W": "float"}),
               (f"cpu/{FILE}", "lamb_update_chunks", None, {"W": "float"}),
               ("grad_norm.cu", "chunk_sums", np.float32, {"ACC": "float"}))

    def __init__(self, params: Parameters, lr: float = 1e-3, betas: Sequence[float] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0.01, clamp: Any = None,
                 bias_correction: bool | str = True, eps_inside_root: bool = False,
                 adapt: bool = True):
        if min(lr, eps, weight_decay) < 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError("LAMB wants lr, eps, weight_decay >= 0 and betas in [0, 1); got lr "
                             f"{lr}, eps {eps}, weight_decay {weight_decay}, betas {betas}")
        if bias_correction not in (True, False, "step"):
            raise ValueError("bias_correction must be True, False or 'step'; got "
                             f"{bias_correction!r}")
        if clamp is not None and not 0 < clamp[0] <= clamp[1]:
            raise ValueError("clamp must be None or (least, most) with 0 < least <= most; got "
                             f"{clamp}")
        super().__init__(params, dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, clamp=clamp, adapt=adapt,
            bias_correction=bias_correction, eps_inside_root=eps_inside_root))

    def count(self, params, states, skip):
        """Returns an array with the step count of each parameter, this step included. A step that
        is skipped is not counted. For parameters on a GPU, the array is on the GPU, because the GPU
        decides whether to skip."""
        xp, steps = params[0]._xp, [s.setdefault("step", 0) for s in states]
        if xp is not np:
            counts = counted_together(xp, steps, states)
            counts += 1 if skip is None else skip == 0
            return counts
        for s in states:
            s["step"] = int(s["step"]) + (skip is None or not bool(skip))
        return np.array([s["step"] for s in states])

    def kernel(self, ws, gs, arrays, steps, group, join, unscale, low, skip):
        """Runs the two passes. The first pass computes the moments and the squared norms, the
        second pass takes the step."""
        unscale, factor = late(unscale)
        rates, more = self.rates(steps, group)
        options = {k: group[k] for k in ("eps", "weight_decay", "eps_inside_root")}
        w2, r2 = moments_by_kernel(ws, gs, *arrays, rates, betas=group["betas"], unscale=unscale,
                              skip=skip, factor=factor, **options)
        steps = group["lr"] * more * self.ratio(*join(w2, r2), group)
        update_by_kernel(ws, *arrays, rates, steps, low=low, skip=skip, **options)

    def plain(self, ws, gs, arrays, steps, group, join):
        rates, more = self.rates(steps, group)
        for g, m, v in zip(gs, *arrays, strict=True):
            for average, x, b in zip((m, v), (g, g * g), group["betas"]):
                average *= b
                average += (1 - b) * x
        outside, inside = places(group["eps"], group["eps_inside_root"])
        xp = xp_of([steps])
        rs = []
        for w, m, v, (first, root) in zip(ws, *arrays, rates, strict=True):
            first, root = first.astype(w.dtype), root.astype(w.dtype)
            rs.append(first * m / (xp.sqrt(v * root**2 + inside) + outside)
                      + group["weight_decay"] * w)
        steps = group["lr"] * more * self.ratio(*join(square_sums(ws), square_sums(rs)), group)
        for w, r, step in zip(ws, rs, steps, strict=True):
            w -= step.astype(w.dtype) * r

    @staticmethod
    def rates(steps, group):
        """Returns (rates, factor). rates: (n, 2) float64. Row i has the bias corrections of
        m and of sqrt(v) for tensor i. factor: a number, or an array (n,) float64. The steps are
        multiplied by this factor."""
        xp, (b1, b2) = xp_of([steps]), group["betas"]
        # If the first step was skipped, the count is 0. maximum() prevents a division by 0.
        t = xp.maximum(steps, 1).astype(np.float64)
        rates = xp.stack([1 / (1 - b1**t), 1 / xp.sqrt(1 - b2**t)], 1)
        if group["bias_correction"] is True:
            return rates, 1.0
        more = rates[:, 0] / rates[:, 1] if group["bias_correction"] == "step" else 1.0
        return xp.ones_like(rates), more

    @staticmethod
    def ratio(w2, r2, group):
        """Returns |w| / |r| of each tensor, within the limits of `clamp`: (n,) float64. w2, r2: the
        squared norms |w|^2 and |r|^2. (The paper has no limits of the ratio. It has a function phi
        of |w|.)"""
        xp = xp_of([w2])
        if not group["adapt"]:
            return xp.ones_like(w2)
        return ratio_of(xp.sqrt(w2), xp.sqrt(r2), group["clamp"])


def moments_by_kernel(weights, grads, exp_avgs, exp_avg_sqs, rates, *, betas, eps, weight_decay,
            eps_inside_root=False, unscale=1.0, skip=None, factor=None):
    """The first pass: updates exp_avgs and exp_avg_sqs in place. Returns (|w|^2, |r|^2): two
    float64 vectors with one number for each array, on the device of the arrays.

    rates:    (n_arrays, 2), the bias corrections 1 / (1 - b1^t) and 1 / sqrt(1 - b2^t)
    The other arguments are as in by_kernel() of adam.py."""
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


def update_by_kernel(weights, exp_avgs, exp_avg_sqs, rates, steps, *, eps, weight_decay,
           eps_inside_root=False, low=None, skip=None):
    """The second pass: w -= step * r, in place. r is the direction of LAMB. steps: (n_arrays,), one
    step size for each array. rates: as in moments_by_kernel().
    low: float16 arrays that get a rounded copy of the new weights, or None."""
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
    """Returns `rates` as a contiguous array of this dtype, for a kernel."""
    return xp.ascontiguousarray(rates.astype(dtype))


def places(eps, inside_root):
    """Returns two numbers: the eps that is added to the root, and the eps that is added inside the
    root. One of these numbers is 0."""
    return (0.0, eps) if inside_root else (eps, 0.0)
