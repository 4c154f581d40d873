"""A linear layer on a CPU by a product of our own: bias and its gradient cost no pass over memory.

    y = x w^T + b         gx = gy w         gw = gy^T x         gb = sums of gy's columns

The kernel adds b where it writes y. It copies gy^T for gw, and sums it up there. The product itself
is what BLAS does, in a hundred lines. Beside NumPy's OpenBLAS 0.3.31 on one core with AVX-512, with
the bias and the sums by NumPy, it takes 0.93 of the time for y and gx on the shapes of
benchmarks/bench_train_step.py, 1.12 for gw, as long in all. Where NumPy has another BLAS, or the
processor narrower registers, BLAS stays (`BEATS_BLAS`): with AVX2 (Zen 3, two threads) a step of a
GPT of 3 or 23 million parameters takes as long by either, and one of width 64 1.2 times by ours.

Kernel: kernels/linear.cu   Op: minidl/ops/matmul.py   Test: tests/fused/test_linear.py
"""

import numpy as np

from minidl.cuda import dispatch
from minidl.cuda.launch import scratch

FILE = "linear.cu"
ROWS, CHUNK = 6, 32  # as in the kernel
COLS = 64  # the widest panel; a multiple of the narrower ones
MAX_ROWS = 192  # of a block: 384 KiB of A in a slab, where 1 MiB of L2 is a core's own
PAD = 16  # floats of a cache line
MIN_BLOCKS = 32  # so that a few threads finish at about the same time
MIN_WORK = 2**22  # multiplications: below, a launch costs more than is gained


def beats_blas():
    """Whether NumPy multiplies by OpenBLAS, on a processor with AVX-512 (NumPy 2.4 calls it V4)."""
    config = np.show_config(mode="dicts")
    simd = config.get("SIMD Extensions", {})
    return ("openblas" in config["Build Dependencies"]["blas"]["name"] and bool(
        {"X86_V4", "AVX512_SKX"} & {*simd.get("baseline", ()), *simd.get("found", ())}))


BEATS_BLAS = beats_blas()


# ---- 1 reference ----


def reference(x, w, b):
    """x w^T + b in float64."""
    return x.astype(np.float64) @ w.T.astype(np.float64) + (0 if b is None else b)


# ---- 2 launch ----


def product(a, b, bias=None, want_sums=False):
    """(a @ b + bias, the sums of a's rows or nothing); float32 matrices of any strides. float16,
    under autocast, is multiplied and summed in float32 and rounded once, as in ops/matmul.py."""
    if a.dtype == np.float16:
        a, b = scratch(a.astype(np.float32)), scratch(b.astype(np.float32))
        bias = None if bias is None else bias.astype(np.float32)
        return tuple(m.astype(np.float16) for m in product(a, b, bias, want_sums))
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
    """(rows, columns) of the block of C that a thread computes at a time: MIN_BLOCKS of them,
    down to half of that where sizes round up, if there are so many tiles. Columns are cut first:
    the rows of a block share B."""
    groups, panels = -(-n_rows // ROWS), -(-n_cols // COLS)
    by_rows = -(-n_rows // MAX_ROWS)
    width = -(-panels // min(panels, -(-MIN_BLOCKS // by_rows)))
    height = -(-groups // max(by_rows, -(-MIN_BLOCKS * width // panels)))
    return height * ROWS, width * COLS


def layout(a):
    """(a contiguous array with a's memory, and the strides of a in it, in elements)."""
    a = a if a.flags.forc else np.ascontiguousarray(a)
    return a if a.flags.c_contiguous else a.T, *(s // a.itemsize for s in a.strides)


def aligned(n):
    """n floats that start with a cache line: a vector load that meets two lines takes twice as
    long, and NumPy promises 16 bytes."""
    memory = scratch(np.empty(n + PAD, np.float32))
    start = -memory.ctypes.data % (4 * PAD) // 4
    return memory[start:start + n]


def fits(x, w):
    """Whether this product is ours: on the CPU, large enough, and faster than NumPy's BLAS."""
    return BEATS_BLAS and type(x) is np.ndarray and x.size * w.shape[0] >= MIN_WORK


def linear(x, w, b):
    """x w^T + b of matrices x (rows, in), w (out, in)."""
    return product(x, w.T, b)[0]


def linear_backward(gy, x, w, wants):
    """(gx, gw, gb), each only if wanted; gy (rows, out)."""
    gx = gw = gb = None
    if wants[0]:  # (rows, out) @ (out, in)
        gx, _ = product(gy, w)
    if wants[1]:  # (out, rows) @ (rows, in)
        gw, gb = product(gy.T, x, want_sums=wants[2])
    elif wants[2]:
        gb = gy.sum(axis=0, dtype=np.float32)
    return gx, gw, gb if wants[2] else None
