"""Placeholders for a parameter whose elements are in the ranks' shards. Using a placeholder raises
an error.

    Freed        stands for a weight in stage 3, while the weight's unit does not run
    Scattered    stands for a gradient after backward, because the mean is in the shards

Without placeholders, an optimizer of model.parameters() finds no gradients, and silently changes
nothing.        Test: tests/parallel/zero/test_zero_use.py   Used by: zero.py, zero3.py
"""

import math

import numpy as np

from minidl.tensor import Absent


class Freed(Absent, np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a weight whose elements are in the ranks' shards. It has a shape and a dtype, but
    no elements. Using it as an array raises AttributeError."""

    base, nbytes = None, 0

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype
        self.ndim, self.size = len(shape), math.prod(shape)

    def _used(self, *_, **__):
        raise AttributeError(
            f"a weight of shape {tuple(self.shape)} was used after it was freed. Each rank holds "
            "only its shard, except while the weight's unit runs. A unit is an item of a "
            "ModuleList or Sequential. Use the weight only in its unit, or inside `with "
            "model.gathered():`. Make an optimizer of model.shards()")

    __getattr__ = __array__ = __array_ufunc__ = __getitem__ = __setitem__ = _used


class Scattered(Absent, np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a gradient after backward, when the mean is in the ranks' shards. Using it as an
    array raises RuntimeError, for instance in an optimizer of model.parameters()."""

    base, nbytes = None, 0

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def _used(self, *_, **__):
        raise RuntimeError(
            f"the gradient of a parameter of shape {tuple(self.shape)} is scattered over the "
            "ranks' "
            "shards. Wrap the model first, then make the optimizer: AdamW(model.shards()). Clip "
            "with model.clip_grad_norm_(...), or optim.clip_grad_norm_(model.shards(), ...)")

    __getattr__ = __array__ = __array_ufunc__ = __getitem__ = __setitem__ = _used
