"""A linear layer. It uses BLAS, or on some CPUs our own matrix product.

    y = x w^T + b         gx = gy w         gw = gy^T x         gb = sums of gy's columns

The leading dimensions of x are flattened: one large product is several times faster than a batch of
small ones.

In our product the bias and its gradient need no extra pass over memory. The kernel adds b when it
writes y, and sums gy's columns when it copies gy^T for gw. Our product is written in the same way
as the product of a BLAS library, but has only about a hundred lines. It was compared with NumPy's
OpenBLAS 0.3.31, on one core with AVX-512 and the shapes of benchmarks/bench_train_step.py. For y
and gx it takes 0.93 times as long as OpenBLAS, and for gw 1.12 times as long. If NumPy has another
BLAS, or the processor has narrower registers, BLAS is used (`BEATS_BLAS`).

Kernel: kernels/cpu/linear.cu   Test: tests/ops/test_matmul.py, test_linear_kernel.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.dispatch import pick
from minidl.cuda.launch import scratch
from minidl.function import Function
from minidl.ops.matmul import as_matrix, column_sums, product, same_dtype

FILE = "cpu/linear.cu"
ROWS, CHUNK = 6, 32  # the same numbers as in the kernel
COLS = 64  # the width of the widest panel, a multiple of the widths of the narrower panels
MAX_ROWS = 192  # rows of a block. A block reads 384 KiB of `a` at a time. An L2 cache has 1 MiB
PAD = 16  # floats of a cache line
MIN_BLOCKS = 32  # at least this many blocks, so that all threads finish at about the same time
MIN_WORK = 2**22  # multiplications. For fewer, a launch costs more time than it saves


def beats_blas():
    """Returns True if NumPy uses OpenBLAS and the processor has AVX-512 (NumPy 2.4 calls this
    V4)."""
    config = np.show_config(mode="dicts")
    simd = config.get("SIMD Extensions", {})
    return ("openblas" in config["Build Dependencies"]["blas"]["name"] and bool(
        {"X86_V4", "AVX512_SKX"} & {*simd.get("baseline", ()), *simd.get("found", ())}))


BEATS_BLAS = beats_blas()


class Linear(Function):
    """y = x w^T + b. Saves x and w. Backward has two matrix products.

    x (..., in), w (out, in), b (out,)   ->   y (..., out)"""

    precision = "white"

    def forward(self, x, w, b):
        if w.ndim != 2 or not x.ndim or x.shape[-1] != w.shape[1]:
            raise ValueError(f"linear: input {x.shape}, weight {w.shape}; want (..., in_features) "
                             "and (out_features, in_features)")
        if x.dtype != w.dtype:
            same_dtype("linear", x, w, "input", "weight")
        if b is not None:
            if x.dtype != b.dtype:
                same_dtype("linear", x, b, "input", "bias")
            if b.shape != (w.shape[0],):
                raise ValueError(f"linear: bias must have the shape ({w.shape[0]},), because the "
                                 f"weight {w.shape} has {w.shape[0]} rows; got {b.shape}")
        self.x_shape, self.ours = x.shape, fits(x, w)
        x = as_matrix(x)
        self.save(x if self.needs[1] else None, w if self.needs[0] else None)
        run = pick(by_kernel, by_blas, x) if self.ours else by_blas
        return run(x, w, b).reshape(*self.x_shape[:-1], w.shape[0])

    def backward(self, gy):
        return self._gradients(gy, *self.saved)

    def _gradients(self, gy, x, w):
        gy = as_matrix(gy)
        run = by_blas_backward
        if self.ours:
            run = pick(by_kernel_backward, run, gy)
        gx, gw, gb = run(gy, x, w, self.needs)
        return None if gx is None else gx.reshape(self.x_shape), gw, gb


def by_blas(x, w, b):
    """Returns x w^T + b, (rows, out). x (rows, in), w (out, in), b (out,) or None."""
    y = product(backend.xp_of([x]), x, w.T)  # (rows, in) @ (in, out)
    if b is not None:
        y += b
    return y


def by_blas_backward(gy, x, w, wants):
    """Returns (gx, gw, gb), for gy (rows, out). wants: three bools. Where a bool is False, the
    entry of the result is None."""
    xp = backend.xp_of([gy])
    gx = product(xp, gy, w) if wants[0] else None  # (rows, out) @ (out, in)
    gw = product(xp, gy.T, x) if wants[1] else None  # (out, rows) @ (rows, in)
    return gx, gw, column_sums(xp, gy) if wants[2] else None


def our_product(a, b, bias=None, want_sums=False):
    """Returns (a @ b + bias, sums). If want_sums is True, `sums` has the sum of each row of a.
    Otherwise `sums` is empty. a and b are float32 matrices with any strides. float16 (autocast) is
    multiplied and summed in float32 and rounded once, as in ops/matmul.py."""
    if a.dtype == np.float16:
        a, b = scratch(a.astype(np.float32)), scratch(b.astype(np.float32))
        bias = None if bias is None else bias.astype(np.float32)
        return tuple(m.astype(np.float16) for m in our_product(a, b, bias, want_sums))
    (n_rows, depth), n_cols = a.shape, b.shape[1]
    c = scratch(np.empty((n_rows, n_cols), np.float32), "temporary")
    sums = np.empty(n_rows if want_sums else 0, np.float32)
    if not (n_rows and n_cols and depth):
        c[...] = 0 if bias is None else bias
        return c, a.sum(axis=1) if want_sums else sums
    groups, panels, chunks = -(-n_rows // ROWS), -(-n_cols // COLS), -(-depth // CHUNK)
    packed_b = aligned(depth * panels * COLS)
    b_memory, *b_strides = layout(b)
    dispatch.kernel(FILE, "linear_pack")(chunks, 1, (packed_b, b_memory, depth, n_cols, *b_strides))
    a_memory, *a_strides = layout(a)
    in_place = a_strides[1] == 1 and not want_sums
    if not in_place:
        packed_a = aligned(depth * groups * ROWS)
        by_chunk = scratch(np.empty((chunks, n_rows), np.float32))
        pack = dispatch.kernel(FILE, "linear_pack_rows")
        pack(chunks, 1, (packed_a, by_chunk, a_memory, n_rows, depth, *a_strides))
        a_memory = packed_a
        sums = by_chunk.sum(axis=0) if want_sums else sums
    block_rows, block_cols = blocks(n_rows, n_cols)
    bias = None if bias is None else np.ascontiguousarray(bias)
    grid = -(-n_rows // block_rows), -(-n_cols // block_cols)
    dispatch.kernel(FILE, "linear_product")(
        grid, 1, (c, a_memory, packed_b, bias, n_rows, n_cols, depth, a_strides[0], not in_place,
                  block_rows, block_cols))
    return c, sums


def blocks(n_rows, n_cols):
    """Returns the size of a block, (rows, columns). A block is a part of the result c = a @ b, and
    one thread computes it. There are about MIN_BLOCKS blocks. Because of rounding there may be
    fewer, but not fewer than half of MIN_BLOCKS. If c has only a few tiles of ROWS x COLS, there is
    at most one block for each tile. The columns are divided first, because all rows of a block use
    the same part of b."""
    groups, panels = -(-n_rows // ROWS), -(-n_cols // COLS)
    by_rows = -(-n_rows // MAX_ROWS)
    width = -(-panels // min(panels, -(-MIN_BLOCKS // by_rows)))
    height = -(-groups // max(by_rows, -(-MIN_BLOCKS * width // panels)))
    return height * ROWS, width * COLS


def layout(a):
    """Returns (a contiguous array, row stride, column stride). The array has the elements of `a`,
    usually in the same memory. Element (i, j) of `a` is at i * row stride + j * column stride in
    the array."""
    a = a if a.flags.forc else np.ascontiguousarray(a)
    return a if a.flags.c_contiguous else a.T, *(s // a.itemsize for s in a.strides)


def aligned(n):
    """Returns an array of n floats that begins where a cache line begins. A vector load across two
    cache lines takes twice the time, and NumPy aligns its arrays to 16 bytes only."""
    memory = scratch(np.empty(n + PAD, np.float32))
    start = -memory.ctypes.data % (4 * PAD) // 4
    return memory[start:start + n]


def fits(x, w):
    """Returns True if our product should be used. The arrays must be on a CPU, the product must be
    large, and our product must be faster than NumPy's BLAS."""
    return BEATS_BLAS and type(x) is np.ndarray and x.size * w.shape[0] >= MIN_WORK


def by_kernel(x, w, b):
    """Returns x w^T + b, (rows, out). x (rows, in), w (out, in), b (out,) or None."""
    return our_product(x, w.T, b)[0]


def by_kernel_backward(gy, x, w, wants):
    """Returns (gx, gw, gb), for gy (rows, out). wants: three bools. Where a bool is False, the
    entry of the result is None."""
    gx = gw = gb = None
    if wants[0]:  # (rows, out) @ (out, in)
        gx, _ = our_product(gy, w)
    if wants[1]:  # (out, rows) @ (rows, in)
        gw, gb = our_product(gy.T, x, want_sums=wants[2])
    elif wants[2]:
        gb = gy.sum(axis=0, dtype=np.float32)
    return gx, gw, gb if wants[2] else None


def linear(input, weight, bias=None):
    """input @ weight.T + bias. input (..., in_features), weight (out_features, in_features), bias
    (out_features,) or None. Returns (..., out_features)."""
    return Linear.apply(input, weight, bias)
