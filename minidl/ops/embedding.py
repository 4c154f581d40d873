"""Embedding: reads a row of a table for each index. Backward adds all gradients of the same row.

    y[t] = w[index[t]]          gw[v] = sum of gy[t] over all t with index[t] = v

The sum is a scatter-add. `np.add.at` adds one element at a time, which is slow. So NumPy's form
first sorts by index. Then the gradients of a row are neighbours, and one `reduceat` sums every
segment:

    index     3 0 3 1 0   ->  order 1 4 | 3 | 0 2     segments start at 0, 2, 3
                              v     0     1   3

The sort is stable. So the order of additions, and the bits of the result, depend only on the
indices. (CuPy's add.at is fast, but its order of additions is random.)

The kernel adds in the same order, the order of t. It needs no sort, and on a GPU no atomic
additions. On a CPU each thread computes some rows of the table, and goes through all t in order. On
a GPU there is a thread block for each t. If t is the first place at which a row is read, the block
of t adds all gradients of this row. The other blocks do nothing.

Kernels: kernels/embedding_grad.cu; on a CPU kernels/cpu/embedding_grad.cu
Test: tests/ops/test_embedding.py, test_embedding_kernel.py
"""

import numpy as np

from minidl import backend, cuda
from minidl.cuda import dispatch
from minidl.cuda.dispatch import pick
from minidl.cuda.index_check import checked
from minidl.cuda.launch import BLOCK, contiguous
from minidl.function import Function

FILE = "embedding_grad.cu"
PARTS = 4  # several parts of the table for a CPU thread, because some parts get more gradients
SMALL = 1 << 16  # if gy has fewer elements, one thread is faster than several


def scatter_add_rows(index, g, n_rows):
    """Returns out (n_rows, width), where out[index[t]] += g[t] for all t. index (n,), g (n, width).
    fp16 is summed, and returned, in fp32."""
    xp = backend.xp_of([g])
    g = g.astype(backend.accumulate_dtype(g.dtype), copy=False)
    out = xp.zeros((n_rows, g.shape[1]), g.dtype)
    if index.size:
        # CuPy's reduceat computes a sum as the difference of two running sums. Its results are
        # imprecise, and an inf spreads to other sums.
        if xp is not np:
            xp.add.at(out, index, g)
            return out
        order = xp.argsort(index, kind="stable")
        ordered = index[order]
        starts = xp.flatnonzero(xp.concatenate([ordered[:1] >= 0, ordered[1:] != ordered[:-1]]))
        out[ordered[starts]] = xp.add.reduceat(g[order], starts, axis=0)
    return out


def by_kernel(index, gy, n_rows):
    """Returns out (n_rows, width), where out[index[t]] += gy[t] for all t. fp16 is summed, and
    returned, in fp32. index: (n,) integers in [0, n_rows). gy: (n, width)."""
    xp = backend.xp_of([index, gy], "embedding_grad")
    (n,), width = index.shape, gy.shape[1]
    gy = contiguous(xp, gy)
    index = contiguous(xp, index.astype(np.int64, copy=False))
    out = xp.zeros((n_rows, width), backend.accumulate_dtype(gy.dtype))
    if not gy.size:
        return out
    if xp is np:
        kernel = dispatch.kernel(dispatch.on_cpu(FILE), "embedding_grad_rows", gy.dtype,
                                 ACC=dispatch.C_TYPES[out.dtype])
        kernel(n_parts(gy.size), 1, (out, gy, index, n, width, n_rows))
    else:
        first = xp.full(n_rows, n, np.int32)
        dispatch.kernel(FILE, "embedding_grad_first")(-(-n // BLOCK), BLOCK, (first, index, n))
        owners(out, gy, index, first, 16 // gy.itemsize if width * gy.itemsize % 16 == 0 else 1)
    return out


def owners(out, gy, index, first, size):
    """Launches the kernel on a GPU. size: the number of columns that a thread adds. It is 1, or the
    number of elements in one load of 16 bytes."""
    n, width = gy.shape
    name = "embedding_grad_packs" if size > 1 else "embedding_grad_owners"
    # A block has a multiple of 32 threads, and each warp has at least one column to add.
    block = min(BLOCK, -(-width // (32 * size)) * 32)
    kernel = dispatch.kernel(FILE, name, gy.dtype, ACC=dispatch.C_TYPES[out.dtype])
    kernel((-(-width // (size * block)), min(n, 65535)), block, (out, gy, index, first, n, width))


def n_parts(n_elems):
    """Returns the number of parts into which the table is divided for the threads of a CPU. For
    each part, a thread reads all indices. So with a single thread there is only one part. The sums
    do not depend on this number."""
    n_threads = cuda.n_threads()
    return 1 if n_threads == 1 or n_elems < SMALL else PARTS * n_threads


class Embedding(Function):
    """w[index]. Saves only the indices, because backward does not need the table."""

    arithmetic = False

    def forward(self, index, w, padding_idx=None):
        if w.ndim != 2 or index.dtype.kind not in "iu":
            raise ValueError("embedding: input must have an integer dtype, and weight the shape "
                             "(num_embeddings, embedding_dim); got input of "
                             f"{index.dtype} and weight of shape {w.shape}")
        n = w.shape[0]
        if self.xp is not np:
            index = checked("embedding", index, n)
        elif index.size and not (0 <= int(index.min()) and int(index.max()) < n):
            raise IndexError(f"embedding: indices from {int(index.min())} to {int(index.max())}, "
                             f"but the weight {w.shape} has the rows 0 to {n - 1}")
        if padding_idx is not None and not -n <= padding_idx < n:
            raise IndexError(f"embedding: padding_idx must be from {-n} to {n - 1}, because the "
                             f"weight {w.shape} has {n} rows; got {padding_idx}")
        self.n_rows, self.padding_idx = n, padding_idx
        self.save(index)
        return self.xp.take(w, index, axis=0)

    def backward(self, gy):
        (index,) = self.saved
        gy = gy.reshape(index.size, gy.shape[-1])
        gw = pick(by_kernel, scatter_add_rows, gy)(index.reshape(-1), gy, self.n_rows)
        if self.padding_idx is not None:
            gw[self.padding_idx] = 0
        return None, gw


def embedding(input, weight, padding_idx=None):
    """weight[input]. input: integer indices (...) -> (..., embedding_dim). The row `padding_idx` is
    read like any other row, but gets no gradient. Raises IndexError for indices out of range."""
    return Embedding.apply(input, weight, padding_idx=padding_idx)
