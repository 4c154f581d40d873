"""The loss scale on a GPU: what unscales a step's gradients, how the scale moves; nobody waits.

    count_bad ─► bad ─► the optimizer's kernel skips          fused/: unscale_check, adamw, sgd
                  └───► loss_scale_update ─► scale            at the end of the step
    scale, |g|^2 ─► loss_scale_factor ─► what the optimizer's kernel multiplies gradients by

Each is one thread's work. The host knows the rule only (growth factor, interval): whether a step
was skipped it finds out when somebody asks.

Kernel: kernels/loss_scale.cu   Used by: grad_scaler.py   Test: tests/precision/test_loss_scale.py
"""

import math

import numpy as np

from minidl import backend
from minidl.fused import dispatch

FILE = "loss_scale.cu"

# ---- 1 reference ----


def reference_factor(scale, square_sum, max_norm):
    """What scaled gradients of this sum of squares are multiplied by."""
    inverse = 1.0 / scale
    if max_norm is not None:
        inverse *= min(1.0, max_norm / (math.sqrt(square_sum) * inverse + 1e-6))
    return inverse


# ---- 2 launch ----


def factor(xp, scale, square_sum=None, max_norm=0.0):
    """(1,) float32: 1 / scale, times what clips the norm, the root of square_sum, to max_norm.
    scale: (1,) float32 or None for 1; square_sum: (1,) float64, of scaled gradients, or None."""
    out = xp.empty(1, np.float32)
    dispatch.kernel(FILE, "loss_scale_factor")(1, 1, (out, scale, square_sum, max_norm))
    return out


def update(scale, counts, bad, *, growth_factor, backoff_factor, growth_interval, hysteresis, lag,
           min_scale, max_scale):
    """Move the scale, (1,) float32, by what a step found: bad, (1,) int32, is not 0 where it was
    skipped. counts: (3,) int32, good steps, patience left, steps skipped. All in place."""
    backend.xp_of([scale, counts, bad], "loss_scale.update")
    dispatch.kernel(FILE, "loss_scale_update")(
        1, 1, (scale, counts, bad, growth_factor, backoff_factor, growth_interval, hysteresis, lag,
               min_scale, max_scale))
