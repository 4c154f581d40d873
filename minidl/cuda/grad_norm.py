"""Computes the norm of many arrays, as if they were one vector, in one launch.

    |g| = sqrt(sum of g^2 over all arrays)        for minidl/optim/clip.py
    sum of g^2 of each array by itself            for minidl/optim/lars.py

Kernels: kernels/grad_norm.cu; on a CPU kernels/cpu/grad_norm.cu
Test: tests/cuda/test_grad_norm.py
"""

import functools
import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import (
    BLOCK, CHUNK, chunk_list, contiguous, on_device, over_chunks, pointers,
)
from minidl.mode import or_numpy

FILE = "grad_norm.cu"


def square_sum(arrays):
    """Returns the sum of all squares: (1,) float64, on the arrays' device. The host does not wait.
    float16 numbers are squared in float32."""
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


def square_sums(arrays):
    """Returns the sum of squares of each array: (n_arrays,) float64, on the arrays' device. Uses
    the kernel. The host does not wait. All arrays must have the same dtype."""
    xp = backend.xp_of(arrays, "norm")
    arrays = [contiguous(xp, a) for a in arrays]
    if not arrays:
        return np.zeros(0)
    dtype, sizes = arrays[0].dtype, tuple(a.size for a in arrays)
    partial = xp.empty(len(chunk_list(sizes)), backend.accumulate_dtype(dtype))
    args = partial, pointers(xp, arrays, dtype, "norm")
    over_chunks(FILE, "sum_squares", dtype, xp, sizes, args, ACC=dispatch.SUM_TYPES[dtype])
    return chunk_sums(partial.reshape(-1, 1), sizes)[:, 0]


def chunk_sums(partial, sizes):
    """Returns, for each array, the sum of the rows of its chunks: (n_arrays, width) float64.
    partial: (n_chunks, width), a row for each chunk. sizes: the number of elements of each
    array."""
    xp, n = backend.xp_of([partial]), len(sizes)
    width = partial.shape[1]
    sums = xp.empty((n, width))
    if n:
        name, block = ("chunk_sums", 8) if xp is np else ("chunk_sums_many", BLOCK)
        blocks = -(-n * width // block) if xp is np else n * width
        acc = dispatch.C_TYPES[partial.dtype]
        dispatch.kernel(FILE, name, np.float32, ACC=acc)(
            blocks, block, (sums, partial, on_device(xp, first_chunks(tuple(sizes))), width, n))
    return sums


@functools.lru_cache(maxsize=64)
def first_chunks(sizes):
    """Returns `first`, (n_arrays + 1,) int64: first[i] is the number of array i's first chunk.
    Array i has the chunks first[i] to first[i + 1] - 1."""
    firsts = np.concatenate([[0], np.cumsum([-(-n // CHUNK) for n in sizes])]).astype(np.int64)
    firsts.flags.writeable = False
    return firsts


def plain_square_sum(arrays):
    """Returns the same as square_sum, without a kernel: it takes the dot product of each array with
    itself. The order of additions differs from the kernel's, so the rounding may differ too."""
    total = backend.xp_of(arrays, "norm").zeros(1)
    for a in arrays:
        flat = a.astype(backend.accumulate_dtype(a.dtype), copy=False).reshape(-1)
        total += flat @ flat  # BLAS reads the array once, and makes no temporary array
    return total


@or_numpy
def square_sum_of(arrays):
    """Returns the sum of all squares: (1,) float64. Uses the kernel if kernels may run on these
    arrays."""
    return (square_sum if dispatch.usable(*arrays) else plain_square_sum)(arrays)


def two_norm(arrays):
    """Returns the 2-norm of all elements together, a float. On a GPU the host waits for the
    result."""
    return math.sqrt(float(square_sum_of(arrays)[0]))
