"""The gradient of an embedding, added without sorting first (CPU) or without atomics (GPU).

    y[t] = w[index[t]]          gw[v] = sum of gy[t] over all t with index[t] = v

On the CPU each thread owns some rows of the table and walks all t in order; on a GPU the first t of
each row owns it and adds the others. Both add in the order of t, so the bits depend on the indices
alone.

Kernel: kernels/embedding_grad.cu   Op: minidl/ops/embedding.py
Test: tests/fused/test_embedding_grad.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import BLOCK, contiguous

FILE = "embedding_grad.cu"
PARTS = 4  # of the table for each CPU thread, because some rows are wanted more often than others
SMALL = 1 << 16  # elements of gy that one thread adds sooner than a second wakes up


# ---- 1 reference ----


def reference(index, gy, n_rows):
    out = np.zeros((n_rows, gy.shape[1]), np.float64)
    np.add.at(out, index, gy.astype(np.float64))
    return out


# ---- 2 launch ----


def embedding_grad(index, gy, n_rows):
    """(n_rows, width) with out[index[t]] += gy[t]; fp16 is summed, and returned, in fp32.

    index: (n,) integers in [0, n_rows); gy: (n, width)."""
    xp = backend.xp_of([index, gy], "embedding_grad")
    (n,), width = index.shape, gy.shape[1]
    gy = contiguous(xp, gy)
    index = contiguous(xp, index.astype(np.int64, copy=False))
    out = xp.zeros((n_rows, width), backend.accumulate_dtype(gy.dtype))
    if not gy.size:
        return out
    if xp is np:
        kernel = dispatch.kernel(FILE, "embedding_grad_rows", gy.dtype,
                                 ACC=dispatch.C_TYPES[out.dtype])
        kernel(n_parts(gy.size), 1, (out, gy, index, n, width, n_rows))
    else:
        first = xp.full(n_rows, n, np.int32)
        dispatch.kernel(FILE, "embedding_grad_first")(-(-n // BLOCK), BLOCK, (first, index, n))
        owners(out, gy, index, first, 16 // gy.itemsize if width * gy.itemsize % 16 == 0 else 1)
    return out


def owners(out, gy, index, first, size):
    """A GPU's launch: `size` columns a thread, a pack of 16 bytes or one."""
    n, width = gy.shape
    name = "embedding_grad_packs" if size > 1 else "embedding_grad_owners"
    block = min(BLOCK, -(-width // (32 * size)) * 32)  # whole warps, none without a column
    kernel = dispatch.kernel(FILE, name, gy.dtype, ACC=dispatch.C_TYPES[out.dtype])
    kernel((-(-width // (size * block)), min(n, 65535)), block, (out, gy, index, first, n, width))


def n_parts(n_elems):
    """Into how many parts the CPU's threads cut the table. Each reads all indices, so one thread
    wants one; the sums do not depend on it."""
    from minidl import cuda  # here, as in dispatch.py

    n_threads = cuda.n_threads()
    return 1 if n_threads == 1 or n_elems < SMALL else PARTS * n_threads
