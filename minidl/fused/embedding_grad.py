"""Embedding whose backward adds rows without sorting them first (CPU) or without atomics (GPU).

    y[t] = w[index[t]]          gw[v] = sum of gy[t] over all t with index[t] = v

Forward is a plain gather. On the CPU each thread owns some rows of the table and walks all t in
order; on a GPU the indices are sorted and each run of equal ones is summed. Both add in the order
of t, so the bits depend on the indices alone.

Kernel: kernels/embedding_grad.cu   Test: tests/fused/test_embedding_grad.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.fused import dispatch
from minidl.fused.launch import BLOCK, contiguous

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
    acc = dispatch.C_TYPES[out.dtype]
    if xp is np:
        kernel = dispatch.kernel(FILE, "embedding_grad_rows", gy.dtype, ACC=acc)
        kernel(n_parts(gy.size), 1, (out, gy, index, n, width, n_rows))
    else:
        order = xp.argsort(index, kind="stable")
        starts = segment_starts(xp, index[order])
        kernel = dispatch.kernel(FILE, "embedding_grad_segments", gy.dtype, ACC=acc)
        n_segments = len(starts) - 1
        grid = -(-width // BLOCK), min(n_segments, 65535)
        kernel(grid, BLOCK, (out, gy, index, order, starts, n_segments, width))
    return out


def n_parts(n_elems):
    """Into how many parts the CPU's threads cut the table. Each reads all indices, so one thread
    wants one; the sums do not depend on it."""
    from minidl import cuda  # here, as in dispatch.py

    n_threads = cuda.n_threads()
    return 1 if n_threads == 1 or n_elems < SMALL else PARTS * n_threads


def segment_starts(xp, ordered):
    """Where each run of equal numbers begins in a sorted array, and its length at the end."""
    changes = xp.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    ends = xp.asarray([len(ordered)])
    return xp.concatenate([xp.zeros(1, np.int64), changes, ends]).astype(np.int64)


# ---- 3 Function ----


class Embedding(Function):
    """w[index]. Saves the indices, not the table."""

    def forward(self, index, w, padding_idx=None):
        if w.ndim != 2 or index.dtype.kind not in "iu":
            raise ValueError(f"embedding: input of {index.dtype}, weight {w.shape}; want integer "
                             "indices and a weight (num_embeddings, embedding_dim)")
        n = w.shape[0]
        if index.size and not (0 <= int(index.min()) and int(index.max()) < n):
            raise IndexError(f"embedding: indices from {int(index.min())} to {int(index.max())}, "
                             f"but the weight {w.shape} has rows 0 to {n - 1}")
        if padding_idx is not None and not -n <= padding_idx < n:
            raise IndexError(f"embedding: padding_idx {padding_idx} is no row of weight {w.shape}")
        self.n_rows, self.padding_idx = n, padding_idx
        self.save(index)
        return self.xp.take(w, index, axis=0)

    def backward(self, gy):
        (index,) = self.saved
        gw = embedding_grad(index.reshape(-1), gy.reshape(index.size, gy.shape[-1]), self.n_rows)
        if self.padding_idx is not None:
            gw[self.padding_idx] = 0
        return None, gw


def embedding(input, weight, padding_idx=None):
    """weight[input]: integer indices (...) -> (..., width). The row `padding_idx` is read like any
    other and gets no gradient."""
    return Embedding.apply(input, weight, padding_idx=padding_idx)
