"""int8 quantisation: int8 takes a quarter of float32's memory. The error is at most half a scale.

The plain form, and a product of int8 numbers: minidl/plain/quantize.py. This file has the kernels.

    scale = max |x| / 127      q = round(x / scale), int8      x' = q scale, |x' - x| <= scale / 2

There is one scale for the whole tensor, or one scale for each channel. A channel is a row of the
first dimension, such as an output channel of a weight. One scale for each channel is better if some
channels have larger numbers than others. This file and int8_linear.py are building blocks for
inference in int8. No layer of minidl.nn calls them. With rows of 1,024 elements, `quantize` gives
the same bits as the int8 code of minidl/comm/codec.py. That code is written in NumPy, because comm
must not import ops.

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
    """Returns (q, scale) of x, computed in float32."""
    x = x.astype(np.float32)
    top = np.abs(x).reshape(len(x), -1).max(1) if per_channel else np.abs(x).max()
    scale = np.atleast_1d(top / np.float32(127))
    wide = scale.reshape(-1, *[1] * (x.ndim - 1)) if per_channel else scale
    q = np.rint(np.divide(x, wide, out=np.zeros_like(x), where=wide > 0))
    return np.clip(q, -127, 127).astype(np.int8), scale


def quantize(x, per_channel=False):
    """Returns (q, scale). q is int8 and has x's shape. scale is float32: (x.shape[0],) if
    per_channel is True, else (1,). x: float32 or float16. Raises ValueError if an element is not
    finite."""
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
            f"quantize: an array of shape {x.shape} has elements that are not finite (inf or "
            "nan). Then the scale is infinite too, and all other elements are lost"
        )
    scale = top / np.float32(127)
    q = xp.empty(x.shape, np.int8)
    launch(xp, "quantize", x, (q, x, scale, rows, cols, int(per_channel)))
    return q, scale


def dequantize(q, scale, dtype=np.float32):
    """Returns q * scale. q and scale: results of quantize. dtype: float32 or float16."""
    xp, per_channel = backend.xp_of([q, scale], "dequantize"), scale.size > 1
    if scale.shape not in ((1,), q.shape[:1]):
        raise ValueError(
            f"dequantize: scale must have the shape (1,) or {q.shape[:1]} for q of shape "
            f"{q.shape}; got {scale.shape}"
        )
    q = contiguous(xp, q)
    x = xp.empty(q.shape, dtype)
    rows, cols = _rows(q.shape, per_channel)
    launch(xp, "dequantize", x, (x, q, scale, rows, cols, int(per_channel)))
    return x


def _rows(shape, per_channel):
    """Returns (rows, cols). If per_channel is True, a row is a channel. Otherwise a row is a vector
    along the last dimension."""
    rows = shape[0] if per_channel or len(shape) == 1 else math.prod(shape[:-1])
    if not per_channel and len(shape) == 1:
        return 1, shape[0]
    return rows, math.prod(shape) // max(rows, 1)


def launch(xp, name, x, args):
    """Launches a kernel of quantize.cu: one thread for each row on a CPU, one warp for each row on
    a GPU. The warps work on packs of elements if the row length is a multiple of 16."""
    rows, cols = args[2:4] if name == "absmax" else args[3:5]
    if x.size and xp is np:
        dispatch.kernel(dispatch.on_cpu(FILE), name, x.dtype)(-(-rows // 8), 8, args)
    elif x.size:
        check_size(name, rows, cols)
        warps(name, x.dtype, rows, args, "packs" if cols % 16 == 0 else "warps")


def warps(name, dtype, rows, args, rung):
    """Launches the rung `packs` or `warps` of a kernel on a GPU."""
    dispatch.kernel(FILE, f"{name}_{rung}", dtype)(-(-rows * 32 // BLOCK), BLOCK, args)
