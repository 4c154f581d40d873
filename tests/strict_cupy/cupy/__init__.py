"""A strict stand-in for CuPy on the CPU (see ../README.md). It has only names of the real CuPy, and
`stand_in`, which has its own counters and errors."""

import types as _types

import numpy as _np
from cupy import _array, _functions, _ufunc
from cupy._array import API as _API
from cupy._array import ndarray  # noqa: F401
from cupy._ufunc import ufunc  # noqa: F401

__version__ = _API["version"]
for _name in _API["functions"]:
    globals()[_name] = getattr(_functions, _name, None) or _functions.function(_name)
for _name in _API["ufuncs"]:
    globals()[_name] = _ufunc.UFUNCS[_name]
for _name in _API["values"]:
    if _name not in globals() and hasattr(_np, _name):
        globals()[_name] = getattr(_np, _name)
matmul = _functions.matmul
from cupy import cuda, linalg, random, stand_in  # noqa: E402, F401
from cupy._raw import RawKernel, RawModule  # noqa: E402, F401

lib = _types.SimpleNamespace(stride_tricks=_types.SimpleNamespace(
    as_strided=_functions.as_strided))


def get_default_memory_pool():
    return cuda._pool


def get_default_pinned_memory_pool():
    return cuda._pool


class errstate:
    """Does nothing: CuPy's arithmetic never warns."""

    def __init__(self, **kwargs):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass
