"""Unscale gradients and find out whether all are finite, in one pass and one launch.

    g *= 1 / loss_scale        bad = how many elements are inf or nan

Two ways to use it: `unscale_check` writes the unscaled gradients, 8 bytes an element; or
`count_bad` only reads, 4 bytes, and the optimizer unscales on its way (adam.py's `unscale` and
`skip`).

Source: Micikevicius et al. 2018 (arXiv 1710.03740).
Kernels: kernels/unscale_check.cu; on a CPU kernels/cpu/unscale_check.cu
Test: tests/cuda/test_unscale_check.py
"""

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import chunk_list, over_chunks, pointers

FILE = "unscale_check.cu"


def run(name, arrays, *factors):
    """(1,) int32, the number of bad elements. It stays on the arrays' device: nobody waits."""
    xp = backend.xp_of(arrays, name)
    total = xp.zeros(1, np.int32)
    for dtype, group in backend.by_dtype(arrays).items():
        sizes = tuple(a.size for a in group)
        bad = xp.zeros(len(chunk_list(sizes)), np.int32)
        args = bad, pointers(xp, group, dtype, name, written=bool(factors)), *factors
        over_chunks(FILE, name, dtype, xp, sizes, args, ACC=dispatch.SUM_TYPES[dtype])
        total += bad.sum(dtype=np.int32)
    return total


def unscale_check(grads, inverse, factor=None):
    """grads *= inverse in place; (1,) int32, how many elements are now inf or nan. factor: an array
    of one number that they are multiplied by as well, in the dtype of their sums."""
    return run("unscale_check", list(grads), inverse, factor)


def count_bad(grads):
    """(1,) int32: how many elements are inf or nan. 0 means go on: it is the optimizers' `skip`."""
    return run("count_bad", list(grads))
