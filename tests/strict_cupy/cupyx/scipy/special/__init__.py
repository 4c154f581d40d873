import math

import numpy as np
from cupy._array import ndarray


def ndtr(x, out=None):
    return _elementwise(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), x)


def erf(x, out=None):
    return _elementwise(math.erf, x)


def _elementwise(function, x):
    f, a = np.vectorize(function, otypes=[float]), x._a
    kind = "f4" if a.dtype == np.float32 else "f8"
    return ndarray._over((f(a.astype("f8")) if a.size else a).astype(kind))
