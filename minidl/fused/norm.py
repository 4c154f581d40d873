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


def global_norm(arrays):
    """The 2-norm of all elements together, a float; 0.0 of nothing. fp16 is squared in fp32."""
    total = 0.0
    for dtype, group in backend.by_dtype(arrays).items():
        xp = backend.xp_of(group, "global_norm")
        group = [contiguous(xp, a) for a in group]
        sizes = tuple(a.size for a in group)
        partial = xp.empty(len(chunk_list(sizes)), backend.accumulate_dtype(dtype))
        args = partial, pointers(xp, group, dtype, "global_norm")
        over_chunks(FILE, "sum_squares", dtype, xp, sizes, args, ACC=dispatch.SUM_TYPES[dtype])
        total += float(partial.sum(dtype=np.float64))
    return math.sqrt(total)


def two_norm(arrays):
    """global_norm, where the kernel does not run by a dot product of each array."""
    if dispatch.usable(*arrays):
        return global_norm(arrays)
    total = 0.0
    for a in arrays:
        flat = a.astype(backend.accumulate_dtype(a.dtype), copy=False).reshape(-1)
        total += float(flat @ flat)  # BLAS: one read, no temporary
    return math.sqrt(total)
