"""Layer norm and RMS norm: in the last dimensions of each sample the mean becomes 0 and the
variance 1.

    y = (x - mean) * r * w + b      r = 1 / sqrt(var + eps)
                                    RMS norm subtracts no mean and adds no b

norm.py explains the gradient. NumPy's form works on a few rows at a time. The kernels make one pass
over memory in forward and one in backward, without intermediate arrays.

Source: Ba, Kiros, Hinton 2016; Zhang & Sennrich 2019 (RMS norm).
Kernels: kernels/layer_norm.cu; on a CPU kernels/cpu/layer_norm.cu (-DCENTERED=0: RMS norm)
Test: tests/ops/test_norm.py, test_layer_norm_kernel.py   Tutorial: tutorials/03_kernel_tour.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import rows as row_kernels
from minidl.cuda.dispatch import SUM_DTYPES, on_cpu, pick
from minidl.function import Function
from minidl.ops.matmul import column_sums
from minidl.ops.norm import scale_shift, standardize, standardize_backward

FILE = "layer_norm.cu"
CENTERED = (("CENTERED", 0),), (("CENTERED", 1),)  # the kernel's macros are CENTERED[centered]
BLOCK_ELEMS = 2**16  # 256 KiB of float32. Four such arrays fit in 1 MiB of cache


class LayerNorm(Function):
    """Normalises over the last dimensions, of sizes `shape`. The last dimensions are joined, so
    that x becomes rows (n, width). Saves the rows (without a copy if x is contiguous), w, and the
    mean and 1/std of each row. With centered=False it is rms_norm."""

    precision = "black"

    def forward(self, x, w, b, shape, eps, centered=True):
        check_normalized_shape("layer_norm" if centered else "rms_norm", x, shape, w, b)
        xp, width = self.xp, math.prod(shape)
        rows = xp.ascontiguousarray(x)
        if x.ndim != 2 or len(shape) != 1:
            rows = rows.reshape(math.prod(x.shape[:x.ndim - len(shape)]), width)
        if w is None:
            w = xp.ones(width, x.dtype)
        elif w.ndim != 1 or not w.flags.c_contiguous:
            w = xp.ascontiguousarray(w).reshape(-1)
        if b is None:
            b = xp.zeros(width, x.dtype)
        elif b.ndim != 1 or not b.flags.c_contiguous:
            b = xp.ascontiguousarray(b).reshape(-1)
        self.shape, self.centered = shape, centered
        run = pick(by_kernel, by_numpy, rows, w, b)
        y, mean, r = run(rows, w, b, eps, centered)
        self.save(rows, w, mean, r)
        return y.reshape(x.shape)

    def backward(self, gy):
        x, w, mean, r = self.saved
        g = self.xp.ascontiguousarray(gy).reshape(x.shape)
        run = pick(by_kernel_backward, by_numpy_backward, g, x, w)
        gx, gw, gb = run(g, x, w, mean, r, self.centered)
        return (gx.reshape(gy.shape), gw.reshape(self.shape),
                gb.reshape(self.shape) if self.centered else None)


class RmsNorm(LayerNorm):
    """LayerNorm with centered=False. It has its own class, because autocast finds a Function by its
    name."""


def row_blocks(xp, rows):
    """Returns slices of `rows` (n, width). Each slice fits in the cache of a CPU core, so all
    passes over a slice read from the cache. This halves the time for 2048 x 256 float32. For a GPU
    there is one slice."""
    n, width = rows.shape
    step = max(1, BLOCK_ELEMS // max(width, 1)) if xp is np else max(n, 1)
    return [slice(i, i + step) for i in range(0, n, step)]


def by_numpy(x, w, b, eps, centered=True):
    """Returns (y, mean, r), where r = 1 / sqrt(var + eps). x and y are (rows, width). mean and r
    are (rows,), in the dtype of the sums."""
    xp = backend.xp_of([x])
    y = xp.empty(x.shape, x.dtype)
    mean, r = (xp.zeros(len(x), backend.accumulate_dtype(x.dtype)) for _ in range(2))
    for at in row_blocks(xp, x):
        xhat, row_mean, _, row_r = standardize(xp, x[at], (1,), eps, centered)
        if centered:
            mean[at] = row_mean[:, 0]
        r[at] = row_r[:, 0]
        y[at] = scale_shift(xhat, w, b, x.dtype)
    return y, mean, r


def by_numpy_backward(g, x, w, mean, r, centered=True):
    """Returns (gx, gw, gb). Computes xhat = (x - mean) * r again."""
    xp = backend.xp_of([x])
    gx = xp.empty(x.shape, mean.dtype)
    gw, gb = xp.zeros(x.shape[1], mean.dtype), xp.zeros(x.shape[1], mean.dtype)
    for at in row_blocks(xp, x):
        xhat = (x[at] - mean[at, None]) * r[at, None]
        block = g[at].astype(mean.dtype, copy=False)
        gw += column_sums(xp, block * xhat)
        gb += column_sums(xp, block)
        gx[at] = standardize_backward(xp, block * w, xhat, r[at, None], (1,), centered)
    return gx, gw, gb


def by_kernel(x, w, b, eps, centered=True, rung=None, **form):
    """Returns (y, mean, r), where r = 1 / sqrt(var + eps). x (rows, cols), w and b (cols,) must be
    contiguous and have the same dtype.

    rung: 1 to 5 of the ladder in the .cu file, or "cpu". The default is the best for the device.
    form: the keyword arguments `form` and `order`, which are passed to `cuda.kernel`."""
    xp = np if type(x) is np.ndarray else backend.xp_of([x])
    (rows, cols), dtype = x.shape, SUM_DTYPES[x.dtype]
    y = xp.empty(x.shape, x.dtype)
    rstd = xp.empty(rows, dtype)
    mean = xp.empty(rows, dtype) if centered else xp.zeros(rows, dtype)  # RMS norm uses mean 0
    if x.size:
        args = y, mean, rstd, x, w, b, rows, cols, eps
        row_kernels.launch(FILE, "layer_norm", x, args, rung, CENTERED[centered], form)
    return y, mean, rstd


def by_kernel_backward(gy, x, w, mean, rstd, centered=True, rung=None, **form):
    """Returns (gx, gw, gb). gb is None for RMS norm. gw and gb have the dtype of the sums."""
    xp, (rows, cols) = row_kernels.backend_of(x), x.shape
    dtype, n_sums = backend.accumulate_dtype(x.dtype), 2 if centered else 1
    gx = xp.empty_like(x)
    if not x.size:
        return gx, xp.zeros(cols, dtype), xp.zeros(cols, dtype) if centered else None
    rung = rung or row_kernels.best_rung(xp, cols, x.dtype)
    n_parts = number_of_parts(xp, rows)
    parts = xp.empty((n_parts, n_sums * cols), dtype)
    form |= {"CENTERED": int(centered)}

    def kernel(name, file=FILE):
        return row_kernels.kernel(file, f"layer_norm_{name}", x.dtype, **form)

    if rung in ("cpu", 1):
        args = gx, parts, gy, x, w, mean, rstd, rows, cols, n_parts
        run = kernel("backward_v1") if rung == 1 else kernel("backward", on_cpu(FILE))
        run(row_kernels.blocks(n_parts, 64), 64, args)
    else:
        args = gx, gy, x, w, mean, rstd, rows, cols
        row_kernels.launch(FILE, "layer_norm_backward", x, args, rung, form=form)
        args = parts, gy, x, mean, rstd, rows, cols
        name, size = ("param_grads_packs", 16 // x.itemsize) if rung > 3 else ("param_grads", 1)
        kernel(name)((row_kernels.blocks(cols, 64 * size), n_parts), 64, args)
    sums = add_parts(xp, kernel("add_eight"), parts)
    return gx, sums[:cols], sums[cols:] if centered else None


def number_of_parts(xp, rows):
    """Returns the number of parts into which the rows are divided for the sums gw and gb. It is a
    power of 8. It depends only on the number of rows and the kind of device. So the bits of a sum
    do not depend on the number of threads. A GPU gets more parts, because it has more threads."""
    if xp is not np and rows >= 8192:
        return 512
    return 64 if rows >= 512 else 8


def add_parts(xp, kernel, parts):
    """Returns the sum of the rows of `parts` (8^k, n), a vector (n,). Adds eight rows at a time."""
    while len(parts) > 1:
        out = xp.empty((len(parts) // 8, parts.shape[1]), parts.dtype)
        kernel(row_kernels.blocks(out.size, 256), 256, (out, parts, out.size))
        parts = out
    return parts[0]


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Normalises the last dimensions to mean 0 and variance 1, then multiplies by weight and adds
    bias.
    normalized_shape: the sizes of these dimensions. weight and bias have this shape, too. The
    variance divides by n, not by n - 1."""
    shape = normalized_shape if type(normalized_shape) is tuple else as_shape(normalized_shape)
    return LayerNorm.apply(input, weight, bias, shape=shape, eps=eps)


def rms_norm(input, normalized_shape, weight=None, eps=None):
    """input / sqrt(mean(input^2) + eps) * weight, with the mean over the last dimensions.
    normalized_shape: the sizes of these dimensions. eps: the default is the machine epsilon of the
    dtype in which the sums are computed. For float16 this dtype is float32."""
    if eps is None and backend.is_floating(input.dtype):
        eps = float(np.finfo(backend.accumulate_dtype(input.dtype)).eps)
    return RmsNorm.apply(input, weight, None, shape=as_shape(normalized_shape), eps=eps,
                         centered=False)


def as_shape(shape):
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


def check_normalized_shape(op, x, shape, w, b):
    if x.dtype.kind != "f":
        raise TypeError(f"{op}: wants floating numbers, got {x.dtype}")
    if not shape or x.shape[-len(shape):] != shape:
        raise ValueError(f"{op}: normalized_shape must be the last sizes of the input's shape; got "
                         f"normalized_shape {shape} and an input of shape {x.shape}")
    for name, v in (("weight", w), ("bias", b)):
        if v is not None and v.shape != shape:
            raise ValueError(f"{op}: {name} must have the shape normalized_shape, "
                             f"{shape}; got {v.shape}")
