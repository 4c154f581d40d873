"""The large elements of a vector as (index, value) pairs, in order: threshold, count, compact.

    x         0.1 -3  0.2  2 | 0 0.3 | 5 0 -4        threshold 2, three chunks
    counts          2        |   0   |   2           first = 0 2 2
    index           1 3                6 8           value -3 2 5 -4

A building block for compressed gradients: the pairs are what minidl/comm/compressed.py's
sparse_all_reduce takes (its code, comm/codec.py, packs any pairs), and what `drop` leaves waits for
the next step. No strategy of minidl.parallel selects by size.

Source: Lin, Han, Mao, Wang, Dally 2018, "Deep gradient compression" (arXiv 1712.01887).
Kernel: kernels/topk_mask.cu   Test: tests/fused/test_topk_mask.py
"""

import numpy as np

from minidl import backend
from minidl.fused import dispatch
from minidl.fused.launch import BLOCK, CHUNK, contiguous, elementwise

FILE = "topk_mask.cu"


# ---- 1 reference ----


def reference(x, threshold):
    """(index, value) of the elements with |x| >= threshold."""
    index = np.flatnonzero(np.abs(x) >= threshold)
    return index, x[index]


# ---- 2 launch ----


def threshold_of(x, k):
    """The k-th largest |x|, a float: what at least k elements reach."""
    if not 1 <= k <= x.size:
        raise ValueError(f"threshold_of: k is {k}, of {x.size} elements")
    xp = backend.xp_of([x], "threshold_of")
    return float(xp.partition(xp.abs(x.reshape(-1)), x.size - k)[x.size - k])


def compact(x, threshold):
    """(index int32, value) of the elements of the 1-d x with |x| >= threshold, in order."""
    xp, n = backend.xp_of([x], "compact"), x.size
    if x.ndim != 1 or n >= 2**31:
        raise ValueError(f"compact: want a vector of less than 2**31 elements, got shape {x.shape}")
    x = contiguous(xp, x)
    n_chunks = -(-n // CHUNK)
    counts = xp.zeros(n_chunks, np.int32)
    launch(xp, "count_above", x, (counts, x, threshold, n, CHUNK, n_chunks))
    ends = xp.cumsum(counts, dtype=np.int32)
    total = int(ends[-1]) if n_chunks else 0
    index, value = xp.empty(total, np.int32), xp.empty(total, x.dtype)
    launch(xp, "compact", x, (index, value, x, ends - counts, threshold, n, CHUNK, n_chunks))
    return index, value


def drop(x, threshold):
    """x = 0 where |x| >= threshold, in place: what compact did not take. x is contiguous."""
    elementwise(FILE, "drop", x.dtype, x.size, (x, threshold, x.size))


def launch(xp, name, x, args):
    """A thread per chunk on the CPU, a warp per chunk on a GPU; the number of chunks is last."""
    n_chunks = args[-1]
    if n_chunks and xp is np:
        dispatch.kernel(FILE, name, x.dtype)(-(-n_chunks // 8), 8, args)
    elif n_chunks:
        dispatch.kernel(FILE, f"{name}_warps", x.dtype)(-(-n_chunks * 32 // BLOCK), BLOCK, args)
