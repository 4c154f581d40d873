"""The loss scale in an array: the factor that unscales gradients, and the rule for the next scale.

    count_bad ─► bad ─► the optimizer's kernel skips          cuda/unscale_check.py, optim/
                  └───► loss_scale_update ─► scale            at the end of the step
    scale, |g|^2 ─► loss_scale_factor ─► factor: the optimizer's kernel multiplies gradients by it

Each kernel has one thread. On a GPU the host does not wait. The host knows the rule (growth factor,
interval), but not the scale. The host learns that a step was skipped only when a program reads the
result of the step.

Kernel: kernels/loss_scale.cu   Used by: grad_scaler.py   Test: tests/precision/test_loss_scale.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch

FILE = "loss_scale.cu"

# ---- 1 reference ----


def reference_factor(scale, square_sum, max_norm):
    """Returns the factor that unscales gradients and clips their norm to max_norm. square_sum: the
    sum of squares of the scaled gradients, or None for no clipping."""
    inverse = 1.0 if scale is None else 1.0 / scale
    if square_sum is not None:
        inverse *= min(1.0, max_norm / (math.sqrt(square_sum) * inverse + 1e-6))
    return inverse


def reference_update(scale, counts, bad, *, growth_factor, backoff_factor, growth_interval,
                     hysteresis, min_scale, max_scale):
    """Returns (scale, counts) after a step. counts: [good steps, patience, skipped steps].
    patience: after this number of overflows the scale falls."""
    good_steps, patience, skipped = counts
    if bad:
        patience -= 1
        if patience <= 0:
            scale = max(scale * backoff_factor, min_scale)
        return scale, [0, patience, skipped + 1]
    good_steps += 1
    if good_steps != growth_interval:
        return scale, [good_steps, patience, skipped]
    if scale * growth_factor <= max_scale:
        scale *= growth_factor
    return scale, [0, hysteresis, skipped]


# ---- 2 launch on a GPU; on a CPU the formula is faster than a launch ----


def factor(scale, square_sum=None, max_norm=None):
    """Returns an array (1,) float32: 1 / scale, times the factor that clips the norm to max_norm.
    scale: (1,) float32, or None for 1. square_sum: (1,) float64, the sum of squares of the scaled
    gradients, or None for no clipping."""
    xp = backend.xp_of([array for array in (scale, square_sum) if array is not None])
    if xp is np:
        given = (None if array is None else array.item() for array in (scale, square_sum))
        return np.array([reference_factor(*given, max_norm)], np.float32)
    out = xp.empty(1, np.float32)
    dispatch.kernel(FILE, "loss_scale_factor")(1, 1, (out, scale, square_sum, max_norm or 0.0))
    return out


def update(scale, counts, bad, *, growth_factor, backoff_factor, growth_interval, hysteresis,
           min_scale, max_scale):
    """Changes the scale and its counts after a step, in place. scale: (1,) float32. bad: (1,)
    int32, not 0 if the step was skipped. counts: (3,) int32, the good steps, the patience and the
    skipped steps. patience: after this number of overflows the scale falls."""
    rule = dict(growth_factor=growth_factor, backoff_factor=backoff_factor,
                growth_interval=growth_interval, hysteresis=hysteresis, min_scale=min_scale,
                max_scale=max_scale)
    if backend.xp_of([scale, counts, bad], "loss_scale.update") is np:
        scale[0], counts[:] = reference_update(scale.item(), counts.tolist(), bad.item(), **rule)
    else:
        dispatch.kernel(FILE, "loss_scale_update")(1, 1, (scale, counts, bad, *rule.values()))
