"""SGD with momentum, weight decay and Nesterov's form in one pass, all parameters in one launch.

    g = grad + decay w    v = momentum v + (1 - dampening) g    w = w - lr v
                          (first step: v = g)                   nesterov: w - lr (g + momentum v)

20 bytes move per parameter with momentum, 12 without; op by op (minidl/optim/sgd.py) 60 and more.

Kernel: kernels/sgd.cu   Test: tests/fused/test_sgd.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, on_device, over_chunks, pointers, same_sizes

# ---- 1 reference ----


def reference(w, g, v, *, first, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0,
              nesterov=False, unscale=1.0):
    """(w, v) after one step, as new arrays; v is what it was without momentum."""
    g = g.astype(w.dtype) * unscale + weight_decay * w
    if not momentum:
        return w - lr * g, v
    v = g if first else momentum * v + (1 - dampening) * g
    return w - lr * (g + momentum * v if nesterov else v), v


# ---- 2 launch ----


def sgd(weights, grads, velocities=None, first=(), *, lr=1e-3, momentum=0.0, dampening=0.0,
        weight_decay=0.0, nesterov=False, unscale=1.0, low=None, skip=None, factor=None,
        rates=None):
    """One step for lists of arrays, in place.

    weights, velocities:  float32 (or all float64), contiguous; velocities with momentum only.
    grads:    of the weights' dtype, or all float16.
    first:    for each array whether this is its first step; its velocity, which must be finite
              (zeros), becomes the gradient.
    rates:    in place of `first` an (arrays, 2) array of the weights' dtype: what each velocity
              keeps, and what it takes of the gradient. minidl/optim/lars.py has its own.
    unscale, low, skip, factor:  see minidl.fused.adamw."""
    if not weights:
        return
    if rates is not None:
        momentum = momentum or 1.0  # there are velocities, even if they keep nothing
    if bool(momentum) != (velocities is not None):
        given = "not given" if velocities is None else "given"
        raise ValueError(f"sgd: momentum {momentum} and velocities {given}: want both or none")
    xp = backend.xp_of([*weights, *grads], "sgd")
    sizes = same_sizes("sgd", weights, grads, *(a for a in (velocities, low) if a is not None))
    if momentum and rates is None and len(first) != len(sizes):
        raise ValueError(f"sgd: {len(sizes)} arrays, but {len(first)} answers to `first`")
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
