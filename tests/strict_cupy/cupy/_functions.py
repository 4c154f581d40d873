"""CuPy's functions: NumPy's functions of the same name, restricted to CuPy's arguments."""

import numpy as np
from cupy import _count, _streams
from cupy._array import (
    SIGNATURES, arrays_in, c_order, device_args, from_other_device, ndarray, put, rubbish,
    unsupported, wrap, writeable,
)
from cupy._memory import on_stream

_WAITS = {"flatnonzero", "nonzero", "argwhere", "unique", "extract", "compress", "allclose"}


def function(name):
    """Returns NumPy's function of this name with CuPy's signature."""
    f, sig = getattr(np, name, None), SIGNATURES["functions"].get(name)

    def call(*args, **kwargs):
        if sig is not None:
            try:
                sig.bind(args, kwargs)
            except TypeError as error:
                raise TypeError(f"cupy.{name}{sig}: {error}") from None
        if f is None:
            raise NotImplementedError(f"stand-in: cupy.{name}")
        if name in _WAITS:
            _count.waits(name)
        a, k = device_args(args), device_args(kwargs)
        with np.errstate(all="ignore"):
            r = f(*a, **{key: v for key, v in k.items() if v is not None or key == "axis"})
        return wrap(r, list(arrays_in((*args, *kwargs.values()))), name)

    call.__name__ = name
    return call


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, ndarray):
        if a._device != _streams.current_device():
            a = a.copy()
        return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
    return array(a, dtype, copy=None, order=order)


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    if isinstance(obj, ndarray):
        if obj._device != _streams.current_device():
            from_other_device(obj)
        else:
            on_stream(reads=(obj,))
        _count.ops("array")
        a = np.array(obj._a, dtype or obj.dtype, order="K", ndmin=ndmin)
        return ndarray._over(a)
    if isinstance(obj, (list, tuple)) and (inside := list(arrays_in(obj))):
        on_stream(reads=inside)
        a = np.array(device_args(obj), dtype=dtype, ndmin=ndmin)
        return ndarray._over(a)
    if hasattr(obj, "__dlpack__") and not isinstance(obj, (np.ndarray, np.generic)):
        obj = np.asarray(obj)
    host = np.array(obj, dtype=dtype, ndmin=ndmin, copy=None)
    x = ndarray._over(np.empty_like(host, order="C" if host.flags.c_contiguous else "K",
                                    subok=False), written=False)
    put(x, host)
    return x


def ascontiguousarray(a, dtype=None):
    a = asarray(a, dtype)
    if a.flags.c_contiguous:
        return a
    on_stream(reads=(a,))
    _count.ops("ascontiguousarray")
    return ndarray._over(c_order(a._a))


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a)


def empty(shape, dtype=float, order="C"):
    return ndarray._over(rubbish(shape, dtype or float, order), written=False)


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    a = np.empty_like(prototype._a, dtype, order, shape=shape)
    a[...] = rubbish(a.shape, a.dtype)
    return ndarray._over(a, written=False)


def copyto(dst, src, casting="same_kind", where=None):
    if isinstance(src, np.ndarray) and src.size != 1:
        raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
    if not isinstance(dst, ndarray):
        raise unsupported(dst)
    writeable(dst)
    src_a, mask = src._a if isinstance(src, ndarray) else src, None if where is None else where
    if isinstance(src, ndarray) and src._device != dst._device:
        from_other_device(src)
    on_stream(reads=[x for x in (src, mask) if isinstance(x, ndarray)
                     and x._device == dst._device], writes=(dst,))
    _count.ops("copyto")
    np.copyto(dst._a, src_a, casting=casting, where=True if mask is None else mask._a)


def where(condition, x=None, y=None):
    if x is None:
        _count.waits("where")
        return wrap(np.where(condition._a), [condition], "where")
    on_stream(reads=list(arrays_in((condition, x, y))))
    _count.ops("where")
    a, b, c = device_args((condition, x, y))
    return ndarray._over(c_order(np.asarray(np.where(a, b, c))))


def clip(a, a_min=None, a_max=None, out=None):
    on_stream(reads=list(arrays_in((a, a_min, a_max))))
    _count.ops("clip")
    x, low, high = a._a, device_args(a_min), device_args(a_max)
    r = np.clip(x, low, high)
    for bound in (low, high):  # CuPy compares, and a comparison with a NaN bound is never true
        if bound is not None and np.isnan(bound).any():
            below = x < (np.nan if low is None else low)
            above = x > (np.nan if high is None else high)
            r = np.where(below, low, np.where(above, high, x)).astype(r.dtype)
    if out is not None:
        out._a[...] = r
        on_stream(writes=(out,))
        return out
    return ndarray._over(np.asarray(r))


def matmul(x1, x2, /, *, out=None, **kwargs):  # CuPy takes `out` only by name
    if not isinstance(x1, ndarray) or not isinstance(x2, ndarray):
        raise unsupported(x1 if isinstance(x2, ndarray) else x2)
    a, b = device_args((x1, x2))
    on_stream(reads=(x1, x2))
    _count.ops("matmul")
    with np.errstate(all="ignore"):
        if a.dtype == b.dtype and a.dtype.itemsize == 2 and a.dtype.kind in "fV":
            r = np.matmul(a.astype("f4"), b.astype("f4")).astype(a.dtype)  # summed in float32
        else:
            r = np.matmul(a, b)
    r = c_order(np.asarray(r)) if np.ndim(r) else np.asarray(r)
    if out is not None:
        writeable(out)
        if out.shape != r.shape:
            raise ValueError(f"Output array has shape {out.shape}, wanted {r.shape}")
        np.copyto(out._a, r, casting="same_kind")
        on_stream(writes=(out,))
        return out
    return ndarray._over(r)


def concatenate(tup, axis=0, out=None, *, dtype=None, casting="same_kind"):
    for a in tup:
        if not isinstance(a, ndarray):
            raise TypeError("Only cupy arrays can be concatenated")
    on_stream(reads=list(tup))
    _count.ops("concatenate")
    r = np.concatenate(device_args(list(tup)), axis, dtype=dtype, casting=casting)
    if out is None:
        return ndarray._over(r)
    out._a[...] = r
    on_stream(writes=(out,))
    return out


def may_share_memory(a, b, max_work=None):
    return np.may_share_memory(a._a, b._a)


def shares_memory(a, b, max_work=None):
    return np.shares_memory(a._a, b._a)


def from_dlpack(array):
    return array._view(array._a) if isinstance(array, ndarray) else ndarray._over(
        np.from_dlpack(array))


def array_equal(a1, a2, equal_nan=False):
    on_stream(reads=(a1, a2))
    _count.ops("array_equal")
    return ndarray._over(np.asarray(np.array_equal(device_args(a1), device_args(a2), equal_nan)))


def einsum(*operands, **kwargs):
    kwargs.pop("optimize", None)
    on_stream(reads=list(arrays_in(operands)))
    _count.ops("einsum")
    with np.errstate(all="ignore"):
        return ndarray._over(c_order(np.asarray(np.einsum(*device_args(operands), **kwargs))))


def as_strided(x, shape=None, strides=None):
    return x._view(np.lib.stride_tricks.as_strided(x._a, shape, strides))
