"""A linear layer with int8 weights and inputs. The sums are exact: only quantize.py rounds.

    y = x_scale * w_scale * (x @ w.T) + bias        x, w int8 from quantize.py, summed in int32

The function is a building block for inference in int8. No layer of minidl.nn calls it.
Kernels: kernels/int8_linear.cu; on a CPU kernels/cpu/int8_linear.cu
Test: tests/ops/extra/test_int8_linear.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous

FILE = "int8_linear.cu"
MAX_K = (2**31 - 1) // 127**2  # with more products, an int32 sum could overflow


def by_numpy(x, w, x_scale, w_scale, bias=None):
    """Returns y = x_scale * w_scale * (x @ w.T) + bias, computed in int64 and float64."""
    y = (x.astype(np.int64) @ w.astype(np.int64).T) * (x_scale.astype(np.float64) * w_scale)
    return y if bias is None else y + bias


def int8_linear(x, w, x_scale, w_scale, bias=None, dtype=np.float32, rung=None):
    """Returns y (rows, outs) in `dtype`, float32 or float16.

    (x, x_scale) and (w, w_scale) are results of `quantize`. x is (rows, k) int8, x_scale is (1,), w
    is (outs, k) int8, and w_scale is (outs,) or (1,). bias: (outs,) float32, or None. rung: the
    default is "cpu" for NumPy arrays and 3 for CuPy arrays. Raises ValueError for other shapes or
    dtypes."""
    xp = backend.xp_of([x, w], "int8_linear")
    if x.dtype != np.int8 or w.dtype != np.int8 or x.ndim != 2 or w.shape[1:] != x.shape[1:]:
        raise ValueError("int8_linear: x must be int8 of shape (rows, k), and w int8 of shape "
                         f"(outs, k); got x {x.shape} of {x.dtype}, w {w.shape} of {w.dtype}")
    (rows, k), outs = x.shape, len(w)
    if x_scale.shape != (1,) or w_scale.shape not in ((1,), (outs,)):
        raise ValueError("int8_linear: x_scale must have the shape (1,), and w_scale the shape "
                         f"(1,) or ({outs},); got {x_scale.shape} and {w_scale.shape}")
    if k > MAX_K:
        raise ValueError(f"int8_linear: wants k <= {MAX_K}, because a longer sum may overflow 32 "
                         f"bits; got k={k}")
    y = xp.empty((rows, outs), dtype)
    if not y.size:
        return y
    rung = rung or ("cpu" if xp is np else 3)
    by_row = rung in ("cpu", 1)
    x, w = (contiguous(xp, a) if by_row else _words(xp, a) for a in (x, w))
    file, name = (dispatch.on_cpu(FILE), "int8_linear") if rung == "cpu" else (
        FILE, f"int8_linear_v{rung}")
    kernel = dispatch.kernel(file, name, dtype)
    grid, block = ((-(-rows // 8),), (8,)) if by_row else (
        (-(-outs // 16), -(-rows // 16)), (16, 16))
    kernel(grid, block, (y, x, w, x_scale, w_scale, bias, rows, outs, x.shape[1],
                         int(w_scale.size > 1)))
    return y


def _words(xp, a):
    """Returns (n, k) int8 as (n, ceil(k / 4)) int32: four numbers in each word, with zeros at the
    end of a row."""
    padded = xp.zeros((len(a), -(-a.shape[1] // 4) * 4), np.int8)
    padded[:, :a.shape[1]] = a
    return padded.view(np.int32)
