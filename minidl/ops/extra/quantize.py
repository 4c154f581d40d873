"""int8 quantisation: a quarter of the memory for an error of at most half a scale.

The plain form, and what a product of such numbers is: minidl/plain/quantize.py. Here: kernels.

    scale = max |x| / 127      q = round(x / scale), int8      x' = q scale, |x' - x| <= scale / 2

One scale for the whole tensor, or one for each row of its first dimension (output channel of a
weight), which follows channels of different size. A building block, with int8_linear.py, for
inference in int8: no layer of minidl.nn calls it. As rows of 1,024 it is the int8 code of
minidl/comm/codec.py, to the bit; that one is written in NumPy, for comm knows arrays alone.

Source: Jacob et al. 2018 (arXiv 1712.05877).
Kernels: kernels/quantize.cu; on a CPU kernels/cpu/quantize.cu
Test: tests/ops/extra/test_quantize.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import BLOCK, contiguous
from minidl.cuda.rows import check_size

FILE = "quantize.cu"


def by_numpy(x, per_channel=False):
    """(q, scale) of x, in float32."""
    x = x.astype(np.float32)
    top = np.abs(x).reshape(len(x), -1).max(1) if per_channel else np.abs(x).max()
    scale = np.atleast_1d(top / np.float32(127))
    wide = scale.reshape(-1, *[1] * (x.ndim - 1)) if per_channel else scale
    q = np.rint(np.divide(x, wide, out=np.zeros_like(x), where=wide > 0))
    return np.clip(q, -127, 127).astype(np.int8), scale


def quantize(x, per_channel=False):
    """(q int8 of x's shape, scale float32): scale is (x.shape[0],) per channel, else (1,).

    x: float32 or float16, finite (ValueError if not)."""
    if x.ndim < 1:
        raise ValueError("quantize: want at least one dimension, got a 0-d array")
    xp, q = backend.xp_of([x], "quantize"), None
    x = contiguous(xp, x)
    rows, cols = _rows(x.shape, per_channel)
    top = xp.zeros(rows, np.float32)
    launch(xp, "absmax", x, (top, x, rows, cols))
    if not per_channel:
        top = top.max(keepdims=True) if rows else xp.zeros(1, np.float32)
    if not bool(xp.isfinite(top).all()):
        raise ValueError(
            f"quantize: an array of shape {x.shape} has elements that are not finite; "
            "an infinite scale would lose all others"
        )
    scale = top / np.float32(127)
    q = xp.empty(x.shape, np.int8)
    launch(xp, "quantize", x, (q, x, scale, rows, cols, int(per_channel)))
    return q, scale


def dequantize(q, scale, dtype=np.float32):
    """q * scale, as quantize gave them; dtype float32 or float16."""
    xp, per_channel = backend.xp_of([q, scale], "dequantize"), scale.size > 1
    if scale.shape not in ((1,), q.shape[:1]):
        raise ValueError(
            f"dequantize: scale {scale.shape} for q {q.shape}; want (1,) or {q.shape[:1]}"
        )
    q = contiguous(xp, q)
    x = xp.empty(q.shape, dtype)
    rows, cols = _rows(q.shape, per_channel)
    launch(xp, "dequantize", x, (x, q, scale, rows, cols, int(per_channel)))
    return x


def _rows(shape, per_channel):
    """(rows, cols): a row per channel, else rows as they lie in memory."""
    rows = shape[0] if per_channel or len(shape) == 1 else math.prod(shape[:-1])
    if not per_channel and len(shape) == 1:
        return 1, shape[0]
    return rows, math.prod(shape) // max(rows, 1)


def launch(xp, name, x, args):
    """A thread per row on the CPU, a warp per row on a GPU, in packs where rows allow it."""
    rows, cols = args[2:4] if name == "absmax" else args[3:5]
    if x.size and xp is np:
        dispatch.kernel(dispatch.on_cpu(FILE), name, x.dtype)(-(-rows // 8), 8, args)
    elif x.size:
        check_size(name, rows, cols)
        warps(name, x.dtype, rows, args, "packs" if cols % 16 == 0 else "warps")


def warps(name, dtype, rows, args, rung):
    """A GPU's launch of the rung `packs` or `warps`."""
    dispatch.kernel(FILE, f"{name}_{rung}", dtype)(-(-rows * 32 // BLOCK), BLOCK, args)
