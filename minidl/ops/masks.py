"""Selects a gradient where a mask is True, and 0 elsewhere. It does not multiply by the mask.

    x.clamp(min=0).sqrt() at x = -1:  the slope of sqrt at 0 is inf, and inf * 0 is nan.
                                      The gradient of x must be 0, because sqrt got 0 and not x

On a CPU the selection is a bit operation. For each number it keeps all bits, or sets all bits to 0.
If the mask is random, np.where takes 20 times as long: 8 ms in place of 0.4 ms for 1 M float32.

Test: tests/ops/test_masks.py   Used by: relu, clamp, maximum, max pooling
"""

import numpy as np

from minidl import backend

WHOLE = {2: np.int16, 4: np.int32, 8: np.int64}  # {bytes of a number: an integer of that size}


def select(gy, mask):
    """Returns a new array: gy where `mask` is True, else 0. mask: bool. Its shape is the shape of
    gy, or broadcasts to the shape of gy."""
    xp = backend.xp_of([gy])
    if xp is not np or gy.ndim == 0:
        return xp.where(mask, gy, gy.dtype.type(0))
    whole, mask = WHOLE[gy.itemsize], np.broadcast_to(mask, gy.shape)
    out = np.empty(gy.shape, gy.dtype)  # not a view, because the backward walk copies views
    bits = out.view(whole)
    np.negative(mask.view(np.int8), out=bits)  # True becomes -1, which has all bits set
    np.bitwise_and(bits, gy.view(whole), out=bits)
    return out
