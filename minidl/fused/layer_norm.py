"""Layer norm and RMS norm, one kernel each way: x is read, y is written, nothing else exists.

    y = (x - mean) * rstd * w + b      RMS norm subtracts no mean and adds no b

Kernels: kernels/layer_norm.cu (RMS norm is the same file compiled with -DCENTERED=0)
Ops: minidl/ops/norm.py   Test: tests/fused/test_layer_norm.py
Tutorial: tutorials/03_kernel_tour.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import rows as r

FILE = "layer_norm.cu"
CENTERED = (("CENTERED", 0),), (("CENTERED", 1),)  # the macros: CENTERED[centered]


# ---- 1 reference ----


def reference(x, w, b, eps, centered=True):
    """(y, mean, rstd) of the rows of x (rows, cols), in the dtype of x. RMS norm has no mean."""
    mean = x.mean(axis=1) if centered else np.zeros(len(x), x.dtype)
    d = x - mean[:, None]
    rstd = 1 / np.sqrt((d * d).mean(axis=1) + eps)
    y = d * rstd[:, None] * w
    return (y + b if centered else y), mean, rstd


def reference_backward(gy, x, w, mean, rstd, centered=True):
    """(gx, gw, gb)."""
    xhat, g = (x - mean[:, None]) * rstd[:, None], gy * w
    gx = g - xhat * (g * xhat).mean(axis=1, keepdims=True)
    if centered:
        gx -= g.mean(axis=1, keepdims=True)
    return gx * rstd[:, None], (gy * xhat).sum(axis=0), gy.sum(axis=0)


# ---- 2 launch ----


def forward(x, w, b, eps, centered=True, rung=None, **ways):
    """(y, mean, rstd) by the kernel. x (rows, cols), w and b (cols,), contiguous, of one dtype.

    rung: 1 to 5 of the ladder in the .cu; the best for the device unless given.
    ways: form and order, as in `cuda.kernel`."""
    xp, (rows, cols) = r.backend_of(x), x.shape
    y, dtype = xp.empty(x.shape, x.dtype), backend.accumulate_dtype(x.dtype)
    rstd = xp.empty(rows, dtype)
    mean = xp.empty(rows, dtype) if centered else xp.zeros(rows, dtype)  # RMS norm writes none
    if x.size:
        args = y, mean, rstd, x, w, b, rows, cols, eps
        r.launch(FILE, "layer_norm", x, args, rung, CENTERED[centered], ways)
    return y, mean, rstd


def backward(gy, x, w, mean, rstd, centered=True, rung=None, **ways):
    """(gx, gw, gb) by the kernels; gb is None for RMS norm. gw, gb have the dtype of the sums."""
    xp, (rows, cols) = r.backend_of(x), x.shape
    dtype, n_sums = backend.accumulate_dtype(x.dtype), 2 if centered else 1
    gx = xp.empty_like(x)
    if not x.size:
        return gx, xp.zeros(cols, dtype), xp.zeros(cols, dtype) if centered else None
    rung = rung or r.best_rung(xp, cols, x.dtype)
    n_parts = number_of_parts(xp, rows)
    parts = xp.empty((n_parts, n_sums * cols), dtype)
    ways |= {"CENTERED": int(centered)}

    def kernel(name):
        return r.kernel(FILE, f"layer_norm_{name}", x.dtype, **ways)

    if rung == 1:
        args = gx, parts, gy, x, w, mean, rstd, rows, cols, n_parts
        kernel("backward_v1")(r.blocks(n_parts, 64), 64, args)
    else:
        args = gx, gy, x, w, mean, rstd, rows, cols
        r.launch(FILE, "layer_norm_backward", x, args, rung, ways=ways)
        args = parts, gy, x, mean, rstd, rows, cols
        name, size = ("param_grads_packs", 16 // x.itemsize) if rung > 3 else ("param_grads", 1)
        kernel(name)((r.blocks(cols, 64 * size), n_parts), 64, args)
    sums = add_parts(xp, kernel("add_eight"), parts)
    return gx, sums[:cols], sums[cols:] if centered else None


def number_of_parts(xp, rows):
    """Into how many parts the rows are cut for the parameters' sums: a power of 8, by the number of
    rows alone, so that the bits of a sum do not depend on the number of threads. A GPU has more
    threads to keep busy."""
    if xp is not np and rows >= 8192:
        return 512
    return 64 if rows >= 512 else 8


def add_parts(xp, kernel, parts):
    """parts (8^k, n) -> the sums over the first dimension, (n,), eight at a time."""
    while len(parts) > 1:
        out = xp.empty((len(parts) // 8, parts.shape[1]), parts.dtype)
        kernel(r.blocks(out.size, 256), 256, (out, parts, out.size))
        parts = out
    return parts[0]
