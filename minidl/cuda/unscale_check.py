"""Unscales gradients and checks that all are finite, in one pass and one launch.

    g *= 1 / loss_scale        bad = how many elements are inf or nan

There are two functions. `unscale_check` writes the unscaled gradients: it moves 8 bytes for each
element. `count_bad` only reads: it moves 4 bytes for each element. After `count_bad`, the optimizer
unscales the gradients in its own pass (see the arguments `unscale` and `skip` in adam.py).

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
    """Launches the kernel `name`. Returns the number of elements that are inf or nan: (1,) int32,
    on the arrays' device. The host does not wait. factors: the kernel multiplies the arrays by
    these numbers, and writes the results into the arrays. Without factors, the kernel only
    reads."""
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
    """Multiplies grads by `inverse`, in place. Returns how many elements are now inf or nan: (1,)
    int32, on the device of grads.

    factor: None, or an array of one number. grads are multiplied by this number, too. The array has
    the dtype in which grads are summed: float32 for float16."""
    return run("unscale_check", list(grads), inverse, factor)


def count_bad(grads):
    """Returns how many elements are inf or nan: (1,) int32, on the device of grads. An optimizer
    gets this number as `skip`. The optimizer does its step only if the number is 0."""
    return run("count_bad", list(grads))
