"""cupy.random: generators. Their numbers differ from CuPy's."""

import numpy as _np
from cupy import _count
from cupy._array import ndarray as _ndarray


class Generator:
    def __init__(self, seed=None):
        self._g = _np.random.default_rng(seed)

    def random(self, size=None, dtype=float, out=None):
        _count.ops("random")
        return _ndarray._over(_np.asarray(self._g.random(size, dtype=dtype)))

    def standard_normal(self, size=None, dtype=float, out=None):
        _count.ops("standard_normal")
        return _ndarray._over(_np.asarray(self._g.standard_normal(size, dtype=dtype)))


def default_rng(seed=None):
    return Generator(seed)
