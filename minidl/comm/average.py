"""The mean over ranks, by any all-reduce. Test: tests/comm/test_average.py

    mean(t, gradients)      mean(t, gradients, tree.all_reduce)

Each all-reduce takes an op: np.add, np.maximum, np.minimum, np.multiply. A mean is not one, as the
mean of means is not the mean: it is a sum, then a division, then a rounding to the array's dtype.
"""

import numpy as np

from minidl.backend import accumulate_dtype
from minidl.comm import ring
from minidl.comm.checks import check_floating
from minidl.comm.collective import collective


@collective
def mean(t, x, all_reduce=ring.all_reduce):
    """The mean of all ranks' floating point x, on every rank, in place; returns x.

    float16 and bfloat16 are summed and divided in float32, and cast last: the float16 sum of 8
    gradients can pass 65504 where their mean does not. That sends twice the bytes of x."""
    if x.dtype.kind != "c":
        check_floating(t, x, "a mean")
    total = all_reduce(t, x.astype(accumulate_dtype(x.dtype), copy=False))
    np.divide(total, t.size, out=total)
    if not np.may_share_memory(total, x):  # of a strided x an all-reduce returns a copy
        x[...] = total
    return x
