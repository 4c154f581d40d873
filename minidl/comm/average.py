"""The mean over ranks, by any all-reduce. Test: tests/comm/test_average.py

    mean(t, gradients)      mean(t, gradients, tree.all_reduce)
    mean_block(t, gradients, bounds)      of one block on each rank: ZeRO's scatter

A mean is no op of an all-reduce, as the mean of means is not the mean: it is a sum, then a
division, then a rounding to the array's dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import accumulate_dtype, xp_of
from minidl.comm import all_to_all, ring, ring_blocks
from minidl.comm.checks import check_floating
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.hints import SameArray


@collective
def mean(t: Transport, x: SameArray, all_reduce: Callable[..., Any] = ring.all_reduce) -> SameArray:
    """The mean of all ranks' floating point x, on every rank, in place; returns x.

    float16 and bfloat16 are summed and divided in float32, and cast last: the float16 sum of 8
    gradients can pass 65504 where their mean does not. That sends twice the bytes of x."""
    if x.dtype.kind != "c":
        check_floating(t, x, "a mean")
    total = all_reduce(t, x.astype(accumulate_dtype(x.dtype), copy=False))
    total /= t.size
    if not xp_of([x]).may_share_memory(total, x):  # of a strided x an all-reduce returns a copy
        x[...] = total
    return x


def mean_block(t, x, bounds, divisor=None):
    """This rank's block, x[bounds[r] : bounds[r+1]], of the mean of all ranks' 1-d x; a view of x,
    which is workspace. divisor: of the sum; the number of ranks unless given.

    Sends x.nbytes less a block: for float32 around the ring, for float16 and bfloat16 all-to-all,
    because the sum is to be in float32 and the message in 2 bytes. Both sum in the ring's order.
    """
    divisor = t.size if divisor is None else divisor
    if accumulate_dtype(x.dtype) == x.dtype:
        own = ring_blocks.reduce_scatter(t, x, bounds)
        if divisor != 1:
            own /= divisor
        return own
    own = x[bounds[t.rank] : bounds[t.rank + 1]]
    received, _ = all_to_all.all_to_all_v(t, x, np.diff(bounds).tolist(), [len(own)] * t.size)
    from_rank = received.reshape(t.size, len(own))
    total = from_rank[(t.rank + 1) % t.size].astype(np.float32)
    for i in range(2, t.size + 1):
        total += from_rank[(t.rank + i) % t.size]
    # divide in float32, then cast: the float16 sum of 8 ranks can pass 65504
    with np.errstate(over="ignore"):
        own[...] = total / divisor
    return own
