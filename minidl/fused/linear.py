"""A linear layer on a CPU by a product of our own: bias and its gradient cost no pass over memory.

    y = x w^T + b         gx = gy w         gw = gy^T x         gb = sums of gy's columns

The kernel adds b where it writes y. It copies gy^T block by block for gw, and sums it up there. The
product itself is what BLAS does, in a hundred lines. Beside NumPy's OpenBLAS 0.3.31 on a processor
with AVX-512 it takes 0.92 of the time, on the shapes of benchmarks/bench_train_step.py; where
NumPy has another BLAS, or the processor narrower registers, BLAS stays (`BEATS_BLAS`).

Kernel: kernels/linear.cu   Plain op: minidl/ops/matmul.py   Test: tests/fused/test_linear.py
"""

import math

import numpy as np

from minidl.function import Function
from minidl.fused import dispatch

FILE = "linear.cu"
BLOCK_ROWS, CHUNK = 48, 32  # as in the kernel
COLS = 32  # the widest panel; a multiple of the narrower ones
MIN_BLOCKS = 24  # so that a few threads finish at about the same time
MIN_WORK = 2**22  # multiplications: below, a launch costs more than is gained


def beats_blas():
    """Whether NumPy multiplies by OpenBLAS, on a processor with AVX-512 (NumPy 2.4 calls it V4)."""
    config = np.show_config(mode="dicts")
    simd = config.get("SIMD Extensions", {})
    return ("openblas" in config["Build Dependencies"]["blas"]["name"] and bool(
        {"X86_V4", "AVX512_SKX"} & {*simd.get("baseline", ()), *simd.get("found", ())}))


BEATS_BLAS = beats_blas()


def reference(x, w, b):
    """x w^T + b in float64."""
    return x.astype(np.float64) @ w.T.astype(np.float64) + (0 if b is None else b)


def product(a, b, bias=None, want_sums=False):
    """(a @ b + bias, the sums of a's rows or nothing); float32 matrices of any strides. float16,
    under autocast, is multiplied and summed in float32 and rounded once, as in ops/matmul.py."""
    if a.dtype == np.float16:
        full = (m if m is None else m.astype(np.float32) for m in (a, b, bias))
        return tuple(m.astype(np.float16) for m in product(*full, want_sums))
    (rows, depth), cols = a.shape, b.shape[1]
    c, sums = np.empty((rows, cols), np.float32), np.empty(rows if want_sums else 0, np.float32)
    if not (rows and cols and depth):
        c[...] = 0 if bias is None else bias
        return c, a.sum(axis=1) if want_sums else sums
    panels = -(-cols // COLS)
    packed = aligned(depth * panels * COLS)
    b_memory, *b_strides = layout(b)
    pack = dispatch.kernel(FILE, "linear_pack")
    pack(-(-depth // CHUNK), 1, (packed, b_memory, depth, cols, *b_strides))
    row_blocks = -(-rows // BLOCK_ROWS)
    col_blocks = min(panels, -(-MIN_BLOCKS // row_blocks))
    block_cols = -(-panels // col_blocks) * COLS
    a_memory, *a_strides = layout(a)
    has_bias = bias is not None
    bias = np.ascontiguousarray(bias) if has_bias else c  # c: an array that nobody reads
    dispatch.kernel(FILE, "linear_product")(
        (row_blocks, -(-cols // block_cols)), 1,
        (c, sums, a_memory, packed, bias, rows, cols, depth, *a_strides, block_cols, has_bias,
         want_sums))
    return c, sums


def layout(a):
    """(a contiguous array with a's memory, and the strides of a in it, in elements)."""
    a = a if a.flags.forc else np.ascontiguousarray(a)
    return a if a.flags.c_contiguous else a.T, *(s // a.itemsize for s in a.strides)


def aligned(n):
    """n floats that start with a cache line: a vector load that meets two lines takes twice as
    long, and NumPy promises 16 bytes."""
    memory = np.empty(n + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start:start + n]


def matrix(x):
    """(..., n) as (rows, n), contiguous."""
    return np.ascontiguousarray(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])


class Linear(Function):
    """x w^T + b. Saves x and w, as the plain op does."""

    precision = "white"

    def forward(self, x, w, b):
        self.shape = x.shape
        x = matrix(x)
        self.save(x if self.needs[1] else None, w if self.needs[0] else None)
        y, _ = product(x, w.T, b)  # (rows, in) @ (in, out)
        return y.reshape(*self.shape[:-1], w.shape[0])

    def backward(self, gy):
        x, w = self.saved
        gy = matrix(gy)
        gx = gw = gb = None
        if self.needs[0]:  # (rows, out) @ (out, in)
            gx = product(gy, w)[0].reshape(self.shape)
        if self.needs[1]:  # (out, rows) @ (rows, in)
            gw, gb = product(gy.T, x, want_sums=self.needs[2])
        elif self.needs[2]:
            gb = gy.sum(axis=0, dtype=np.float32)
        return gx, gw, gb if self.needs[2] else None


def linear(input, weight, bias=None):
    """input @ weight.T + bias; weight (out_features, in_features), bias (out_features,) or None."""
    return Linear.apply(input, weight, bias)


def accepts(input, weight, bias=None):
    """Whether it is float32 on the CPU, large enough, and of shapes that fit; where they do not,
    the plain op says what is wrong."""
    given = [a for a in (input, weight, bias) if a is not None]
    arrays = [getattr(a, "_data", a) for a in given]
    if not BEATS_BLAS or not all(type(a) is np.ndarray and a.dtype == np.float32 for a in arrays):
        return False
    x, w = arrays[:2]
    fits = w.ndim == 2 and x.ndim and x.shape[-1] == w.shape[1]
    fits = fits and (bias is None or tuple(bias.shape) == w.shape[:1])
    return fits and x.size * w.shape[0] >= MIN_WORK
