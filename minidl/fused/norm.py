"""The norm of many arrays as one vector: one launch, whatever their number.

    |g| = sqrt(sum of g^2 over all arrays)        minidl/optim/clip.py bounds it

Kernel: kernels/norm.cu   Test: tests/fused/test_norm.py
"""

import math

import numpy as np

from minidl import backend
from minidl.fused import dispatch
from minidl.fused.launch import chunk_list, contiguous, over_chunks, pointers

FILE = "norm.cu"


# ---- 1 reference ----


def reference(arrays):
    """The norm, in float64."""
    return math.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays))


# ---- 2 launch ----


def square_sum(arrays):
    """The sum of all squares, an array of one float64 on the arrays' device: nobody waits. fp16 is
    squared in fp32."""
    total = backend.xp_of(arrays, "norm").zeros(1)
    for dtype, group in backend.by_dtype(arrays).items():
        xp = backend.xp_of(group, "norm")
        group = [contiguous(xp, a) for a in group]
        sizes = tuple(a.size for a in group)
        partial = xp.empty(len(chunk_list(sizes)), backend.accumulate_dtype(dtype))
        args = partial, pointers(xp, group, dtype, "norm")
        over_chunks(FILE, "sum_squares", dtype, xp, sizes, args, ACC=dispatch.SUM_TYPES[dtype])
        total += partial.sum(dtype=np.float64)
    return total


def plain_square_sum(arrays):
    """The same by a dot product of each array, in its own order of sums: where no kernel runs."""
    total = backend.xp_of(arrays, "norm").zeros(1)
    for a in arrays:
        flat = a.astype(backend.accumulate_dtype(a.dtype), copy=False).reshape(-1)
        total += flat @ flat  # BLAS: one read, no temporary
    return total


def square_sum_of(arrays):
    """square_sum, by the kernel where it runs."""
    return (square_sum if dispatch.usable(*arrays) else plain_square_sum)(arrays)


def global_norm(arrays):
    """The 2-norm of all elements together, a float, by the kernel; 0.0 of nothing."""
    return math.sqrt(float(square_sum(arrays)[0]))


def two_norm(arrays):
    """The same by the kernel or without; on a GPU the host waits for the number."""
    return math.sqrt(float(square_sum_of(arrays)[0]))
