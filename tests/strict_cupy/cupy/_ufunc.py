"""Ufuncs with CuPy's loops, keywords and errors, and NumPy's arithmetic."""

import numpy as np
from cupy import _count
from cupy._array import (
    API, NUMBERS, arrays_in, c_order, check_device, device_args, host_index, ndarray, unsupported,
    writeable,
)
from cupy._memory import on_stream

_NUMPY_NAME = {"true_divide": "divide"}
_KIND = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3, "V": 2}
_PYTHON = {bool: 0, int: 1, float: 2, complex: 3}


def _dtype(char):
    """Returns a loop's dtype. E is bfloat16, which NumPy lacks."""
    if char != "E":
        return np.dtype(char)
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


class ufunc:
    """cupy.ufunc."""

    def __init__(self, name, nin, nout, types):
        self.name, self.nin, self.nout, self.types = name, nin, nout, types
        self.__name__ = name
        self._np = getattr(np, _NUMPY_NAME.get(name, name), None)
        loops = [[tuple(map(_dtype, side)) for side in t.split("->")] for t in types]
        self._found = {}
        self._loops = [(kinds, outs) for kinds, outs in loops
                       if all(k is not None for k in kinds + outs)]

    def __repr__(self):
        return f"<ufunc 'cupy_{self.name}'>"

    def __call__(self, *args, **kwargs):
        unknown = set(kwargs) - {"out", "dtype", "casting", "where"}
        if unknown:
            raise TypeError(f"{self.name}() got unexpected keyword arguments {sorted(unknown)}")
        if not self.nin <= len(args) <= self.nin + self.nout:
            raise TypeError(f"Wrong number of arguments for {self!r}: {len(args)}")
        out = kwargs.get("out", args[self.nin] if len(args) > self.nin else None)
        args, ins = args[:self.nin], []
        for a in args:
            if isinstance(a, ndarray):
                check_device(a)
                ins.append(a._a)
            elif isinstance(a, NUMBERS):
                ins.append(a)
            elif hasattr(a, "__cuda_array_interface__"):  # CuPy asks, too: a Scattered raises here
                raise NotImplementedError(f"stand-in: {self.name} of another library's array")
            else:
                raise unsupported(a)
        kinds, outs = self._loop(ins, kwargs.get("dtype"))
        on_stream(reads=[a for a in args if isinstance(a, ndarray)])
        _count.ops(self.name)
        if self._np is None:
            raise NotImplementedError(f"stand-in: cupy.{self.name}")
        with np.errstate(all="ignore"):
            cast = [x.astype(k, copy=False) if isinstance(x, np.ndarray)
                    else np.asarray(x).astype(k) for x, k in zip(ins, kinds)]
            where = kwargs.get("where")
            if where is not None:
                if out is None:
                    raise NotImplementedError("stand-in: where= wants out=")
                r = self._np(*cast, where=where._a, out=out._a.copy())
            else:
                r = self._np(*cast)
        if self.nout > 1:
            return tuple(ndarray._over(c_order(y)) for y in r)
        r = np.asarray(r).astype(outs[0], order="C", copy=False)
        if not r.flags.c_contiguous:
            r = r.copy("C")
        if out is None:
            return ndarray._over(r.reshape(np.broadcast_shapes(*(np.shape(x) for x in ins))))
        return self._into(out, r, kwargs.get("casting") or "same_kind")

    def _into(self, out, r, casting):
        if isinstance(out, tuple):
            (out,) = out
        if not isinstance(out, ndarray):
            raise TypeError(f"return arrays must be of ArrayType, got {type(out)}")
        check_device(out)
        writeable(out)
        if not np.can_cast(r.dtype, out.dtype, casting):
            raise TypeError(f"output (typecode {r.dtype.char!r}) could not be coerced to provided "
                            f"output parameter (typecode {out.dtype.char!r}) according to the "
                            f'casting rule "{casting}"')
        if np.broadcast_shapes(r.shape, out.shape) != out.shape:
            raise ValueError(f"Out shape is mismatched: {out.shape} for {r.shape}")
        with np.errstate(all="ignore"):
            out._a[...] = r
        on_stream(writes=(out,))
        return out

    def _loop(self, ins, dtype):
        """Returns the first loop that the operands can be cast to. A Python number does not count,
        unless its kind (bool < int < float) is above the kind of every array."""
        key = dtype, *(getattr(x, "dtype", None) or type(x) for x in ins)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._first_loop(ins, dtype)
        return found

    def _first_loop(self, ins, dtype):
        if dtype is not None:
            for kinds, outs in self._loops:
                if outs[0] == np.dtype(dtype):
                    return kinds, outs
            raise TypeError(f"Wrong type ({dtype}) of arguments for {self.name}")
        arrays = [_KIND[x.dtype.kind] for x in ins if hasattr(x, "dtype")]
        numbers = [_PYTHON[type(x)] for x in ins if not hasattr(x, "dtype")]
        if arrays and numbers and max(arrays) < max(numbers):
            ins = [x if hasattr(x, "dtype") else np.asarray(x) for x in ins]
        for kinds, outs in self._loops:
            if all(self._fits(x, k) for x, k in zip(ins, kinds)):
                return kinds, outs
        raise TypeError(f"Wrong type ({[getattr(x, 'dtype', type(x)) for x in ins]}) of arguments "
                        f"for {self.name}")

    @staticmethod
    def _fits(x, kind):
        if type(x) in _PYTHON:
            return _PYTHON[type(x)] <= _KIND[kind.kind] if kind != bool else type(x) is bool
        return np.can_cast(x.dtype, kind)

    def at(self, a, indices, b=None):
        if self.name not in ("add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or",
                             "bitwise_xor"):
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        if self.name in ("add", "subtract") and a.dtype.char not in "iIqQLlefdFD":
            raise TypeError(f"cupy.{self.name}.at: unsupported dtype {a.dtype}")
        if self.name in ("maximum", "minimum") and a.dtype.char not in "iIqQlLf":
            # CuPy accepts float64, but gave NaN on a GPU (CuPy 14.2, H100)
            raise TypeError(f"cupy.{self.name}.at only supports int32, int64, float32, float64, "
                            "uint32, uint64 as data type")
        check_device(a)
        index, _ = host_index(indices)
        on_stream(reads=tuple(arrays_in((indices, b))), writes=(a,))
        _count.ops(f"{self.name}.at")
        self._np.at(a._a, index, device_args(b))

    def reduce(self, array, axis=0, dtype=None, out=None, keepdims=False):
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`{self.name}.reduce` is not supported yet")
        return (array.sum if self.name == "add" else array.prod)(axis, dtype, out, keepdims)

    def accumulate(self, array, axis=0, dtype=None, out=None):
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`{self.name}.accumulate` is not supported yet")
        return (array.cumsum if self.name == "add" else array.cumprod)(axis, dtype, out)

    def reduceat(self, array, indices, axis=0, dtype=None, out=None):
        if self.name != "add":
            raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")
        return array._add_reduceat(indices, axis, dtype, out)


UFUNCS = {n: ufunc(n, u["nin"], u["nout"], u["types"]) for n, u in API["ufuncs"].items()}
UFUNCS.setdefault("true_divide", UFUNCS["divide"])
