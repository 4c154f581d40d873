"""Computes the mean over ranks with any all-reduce. Test: tests/comm/test_average.py

    mean(t, gradients)      mean(t, gradients, tree.all_reduce)
    mean_block(t, gradients, bounds)      each rank gets one block of the mean; ZeRO uses this

A mean cannot be the op of an all-reduce, because the mean of means is not the mean of all arrays.
So these functions first compute the sum. Then they divide the sum by the number of ranks, and round
it to the array's dtype.
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
    """Writes the mean of all ranks' x into x, on every rank. Returns x.

    x: floating point or complex. Arrays of float16 and bfloat16 are summed and divided in float32,
    then cast back. So their messages are twice as long. float32 is needed because a float16 sum of
    8 gradients can be larger than 65504, the largest float16 number. The mean of the gradients is
    smaller."""
    if x.dtype.kind != "c":
        check_floating(t, x, "a mean")
    total = all_reduce(t, x.astype(accumulate_dtype(x.dtype), copy=False))
    total /= t.size
    if not xp_of([x]).may_share_memory(total, x):  # an all-reduce of a strided x returns a copy
        x[...] = total
    return x


def mean_block(t, x, bounds, divisor=None):
    """Computes the mean of all ranks' 1-d x. Rank r returns only block r of the mean, as the view
    x[bounds[r] : bounds[r+1]]. The other blocks of x are overwritten.

    divisor: the sum is divided by this number. If None, it is divided by the number of ranks.

    A rank sends every block of x except its own. float32 and float64 arrays are reduced by a ring.
    float16 and bfloat16 arrays are sent by an all-to-all. Then an element takes 2 bytes in the
    message, but the additions are in float32. In all cases the additions are in the order of the
    ring."""
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
    # cast after the division: a float16 sum of 8 ranks can exceed 65504
    with np.errstate(over="ignore"):
        own[...] = total / divisor
    return own
