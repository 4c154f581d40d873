"""What a parameter holds while its elements are in the ranks' shards: a shape, and an explanation.

    weight, stage 3, between uses     Freed         gathered by the unit that uses it
    gradient, after backward          Scattered     the mean is in the shards, for the optimizer

Without these an optimizer made of model.parameters() would find no gradients and change nothing,
in silence.        Test: tests/parallel/zero/test_zero_use.py   Used by: zero.py, zero3.py
"""

import math

import numpy as np

from minidl.tensor import Absent


class Freed(Absent, np.lib.mixins.NDArrayOperatorsMixin):
    """What a parameter holds while its elements are on other ranks: a shape without elements."""

    base, nbytes = None, 0

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype
        self.ndim, self.size = len(shape), math.prod(shape)

    def _used(self, *_, **__):
        raise AttributeError(
            f"a weight of shape {tuple(self.shape)} is freed, its shards are on their owners' "
            "ranks: it "
            "was used outside of its unit's forward. Let the module that uses it be the unit, or "
            "use it inside `with model.gathered():`. An optimizer is made of model.shards()")

    __getattr__ = __array__ = __array_ufunc__ = __getitem__ = __setitem__ = _used


class Scattered(Absent, np.lib.mixins.NDArrayOperatorsMixin):
    """What a parameter holds as its gradient after backward: it is in the ranks' shards. Whoever
    uses it as an array hears so: an optimizer or a clip of `model.parameters()`, say."""

    base, nbytes = None, 0

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def _used(self, *_, **__):
        raise RuntimeError(
            f"the gradient of a parameter of shape {tuple(self.shape)} is scattered over the "
            "ranks' "
            "shards. Make the optimizer of model.shards(), after wrapping the model: "
            "AdamW(model.shards()). Clip with model.clip_grad_norm_(...), or "
            "optim.clip_grad_norm_(model.shards(), ...)")

    __getattr__ = __array__ = __array_ufunc__ = __getitem__ = __setitem__ = _used
