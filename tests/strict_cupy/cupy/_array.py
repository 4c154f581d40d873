"""cupy.ndarray over NumPy memory. It refuses what CuPy refuses, and lacks what CuPy lacks."""

import inspect
import json
from pathlib import Path

import numpy as np
from cupy import _count, _memory, _streams
from cupy._memory import on_stream

API = json.loads((Path(__file__).parent / "api.json").read_text())
NUMBERS = (bool, int, float, complex, np.generic)


def signature(text):
    """Returns the inspect.Signature of a text such as '(a, axis=None)'."""
    space = {}
    exec(f"def f{text}: pass", {"ndarray": None}, space)
    return inspect.signature(space["f"])


class Signature:
    """Checks that a call fits. It checks each form of a call once."""

    def __init__(self, text):
        self.signature, self.seen = signature(text), set()

    def bind(self, args, kwargs):
        form = len(args), *kwargs
        if form not in self.seen:
            self.signature.bind(*args, **kwargs)
            self.seen.add(form)

    def __str__(self):
        return str(self.signature)


SIGNATURES = {table: {name: Signature(text) for name, text in API[table].items() if text}
              for table in ("functions", "ndarray")}


class Flags:
    """x.flags."""

    def __init__(self, a, own):
        f = a.flags
        self.c_contiguous, self.f_contiguous = f.c_contiguous, f.f_contiguous
        self.forc, self.fnc, self.owndata = f.forc, f.fnc, own

    def __getitem__(self, name):
        return getattr(self, name.lower())


class ndarray:
    """cupy.ndarray. _a: its elements as a NumPy array; _block: the memory that holds them."""

    __module__ = "cupy"
    __slots__ = ("_a", "base", "_device", "_block", "_span", "__weakref__")
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        if memptr is None:
            if strides is not None:
                raise NotImplementedError("stand-in: strides without memory")
            self._new(rubbish(shape, dtype, order or "C"))
        else:
            under = memptr._array
            self._a = np.ndarray(shape, dtype, under._a.reshape(-1).view(np.uint8), 0, strides)
            self.base = under if under.base is None else under.base
            self._device, self._block, self._span = under._device, under._block, None

    def _new(self, a):
        self._a, self.base, self._span = a, None, None
        self._block = _memory.Block(a.nbytes)
        self._device = self._block.device

    @classmethod
    def _over(cls, a, written=True):
        """Returns a new device array with the elements of a. Nothing else may refer to a."""
        if a.dtype.hasobject or a.dtype.kind not in "?buifcV":
            raise ValueError(f"Unsupported dtype {a.dtype}")
        self = cls.__new__(cls)
        self._new(a)
        if written:
            on_stream(writes=(self,))
        return self

    def _view(self, a):
        view = ndarray.__new__(ndarray)
        view._a, view.base, view._span = a, self if self.base is None else self.base, None
        view._device, view._block = self._device, self._block
        return view

    # -- attributes

    shape = property(lambda s: s._a.shape)
    dtype = property(lambda s: s._a.dtype)
    size = property(lambda s: s._a.size)
    ndim = property(lambda s: s._a.ndim)
    nbytes = property(lambda s: s._a.nbytes)
    itemsize = property(lambda s: s._a.itemsize)
    strides = property(lambda s: s._a.strides)
    flags = property(lambda s: Flags(s._a, s.base is None))
    T = property(lambda s: s._view(s._a.T))
    mT = property(lambda s: s._view(s._a.mT))
    real = property(lambda s: s)
    device = property(lambda s: _streams.Device(s._device))
    data = property(lambda s: _memory.MemoryPointer(s))

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "version": 3, "stream": 1,
                "strides": None if self._a.flags.c_contiguous else self.strides,
                "descr": [("", self.dtype.str)], "data": (self.data.ptr, False)}

    def __dlpack__(self, **kwargs):
        return self._a.__dlpack__()

    def __dlpack_device__(self):
        return (2, self._device)

    # -- to the host; the host waits

    def _host(self, kind, stream=None):
        _count.waits(kind)
        with _streams.LOCK:
            queue = _streams.queue_of(stream)
            _memory.read(self, queue, queue.tick())
            _streams.synchronize(queue)
        return self._a

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` "
                        "to construct a NumPy array explicitly.")

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is not None and (type(out) is not np.ndarray or out.shape != self.shape
                                or out.dtype != self.dtype):
            raise ValueError(f"get(out=): wanted a numpy.ndarray of {self.dtype} {self.shape}")
        if out is not None and _memory.pages_at(out.ctypes.data, out.nbytes) and not blocking:
            _memory.download(self, out.ctypes.data, out.nbytes, _streams.queue_of(stream))
            return out
        a = self._host("get", stream)
        if out is not None:
            out[...] = a
            return out
        return a.copy(order)

    def set(self, arr, stream=None):
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        put(self, arr, stream)

    def item(self):
        return self._host("item").item()

    def tolist(self):
        return self._host("tolist").tolist()

    def __float__(self):
        return float(self._host("float").item())

    def __int__(self):
        return int(self._host("int").item())

    def __index__(self):
        if self.dtype.kind not in "iu" or self.size != 1:
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return self._host("index").item().__index__()

    def __bool__(self):
        if self.size != 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous. "
                             "Use a.any() or a.all()")
        return bool(self._host("bool").item())

    def __len__(self):
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return len(self._a)

    def __iter__(self):
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return repr(self._host("repr"))

    def __str__(self):
        return str(self._host("str"))

    def __format__(self, spec):
        a = self._host("format")
        return format(a.item() if self.ndim == 0 else a, spec)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __reduce__(self):
        return _unpickled, (self.get(),)

    # -- indexing

    def __getitem__(self, index):
        check_device(self)
        parts, basic = host_index(index)
        if basic:
            if not any(p is Ellipsis for p in parts):
                parts = (*parts, Ellipsis)  # gives a view without dimensions, not a number
            return self._view(self._a[parts])
        masks = sum(isinstance(p, np.ndarray) and p.dtype == bool for p in parts)
        if masks > 1:
            raise ValueError("CuPy does not support more than one boolean array in an index")
        if masks:
            _count.waits("mask")
        on_stream(reads=(self, *arrays_in(index)))
        _count.ops("take")
        return ndarray._over(c_order(np.asarray(self._a[wrapped(parts, self.shape)])))

    def __setitem__(self, index, value):
        check_device(self)
        writeable(self)
        parts, basic = host_index(index)
        if isinstance(value, ndarray):
            check_device(value)
            on_stream(reads=(value, *arrays_in(index)))
            value = value._a
        else:
            value = np.asarray(value, dtype=self.dtype)
            if basic and value.shape:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            if value.shape:
                _count.uploads("setitem")
        self._a[parts if basic else wrapped(parts, self.shape)] = value
        _count.ops("setitem")
        on_stream(writes=(self._view(self._a[parts]) if basic and self._a[parts].ndim else self,))

    # -- operators

    def _binary(self, name, other, reflected=False):
        if not isinstance(other, (ndarray, np.ndarray, *NUMBERS)):
            return NotImplemented
        from cupy import _functions, _ufunc

        f = _functions.matmul if name == "matmul" else _ufunc.UFUNCS[name]
        return f(other, self) if reflected else f(self, other)

    def _in_place(self, name, other):
        if not isinstance(other, (ndarray, np.ndarray, *NUMBERS)):
            return NotImplemented
        from cupy import _ufunc

        return _ufunc.UFUNCS[name](self, other, out=self)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        from cupy import _functions, _ufunc

        name = {"divide": "true_divide"}.get(ufunc.__name__, ufunc.__name__)
        f = _functions.matmul if name == "matmul" else _ufunc.UFUNCS.get(name)
        if f is None:
            return NotImplemented
        f = f if method == "__call__" else getattr(f, method)
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        return f(*inputs, **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        import cupy

        f = getattr(cupy, func.__name__, None)
        if f is None or not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        return f(*args, **kwargs)

    # -- methods that differ from NumPy's

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if casting is not None or subok is not None:
            raise TypeError("astype: CuPy does not support casting= and subok=")
        check_device(self)
        dtype = np.dtype(dtype)
        if copy is False and dtype == self.dtype:
            return self
        on_stream(reads=(self,))
        _count.ops("astype")
        with np.errstate(all="ignore"):
            return ndarray._over(self._a.astype(dtype, order=order))

    def copy(self, order="C"):
        if self._device == _streams.current_device():
            on_stream(reads=(self,))
        else:
            from_other_device(self)
        _count.ops("copy")
        return ndarray._over(self._a.copy(order))

    def view(self, dtype=None, type=None):
        return self._view(self._a.view() if dtype is None else self._a.view(dtype))

    def reshape(self, *shape, order="C", copy=None):
        if len(shape) == 1 and not hasattr(shape[0], "__index__"):
            (shape,) = shape
        shape = tuple(shape)
        if any(isinstance(n, ndarray) for n in shape):
            raise TypeError("'cupy.ndarray' object cannot be interpreted as an integer")
        a = self._a.reshape(shape, order=order)
        if root(a) is root(self._a):
            return self._view(a)
        on_stream(reads=(self,))
        return ndarray._over(a)

    def fill(self, value):
        check_device(self)
        if isinstance(value, ndarray):
            if value.shape:
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            on_stream(reads=(value,))
            value = value._a
        value = np.asarray(value, dtype=self.dtype)
        if value.shape:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        writeable(self)
        self._a.fill(value)
        _count.ops("fill")
        on_stream(writes=(self,))

    def transpose(self, *axes):
        return self._view(self._a.transpose(*axes))

    def flatten(self, order="C"):
        on_stream(reads=(self,))
        return ndarray._over(self._a.flatten(order))

    def _add_reduceat(self, indices, axis, dtype, out):
        # CuPy's way: a running sum of everything, then differences
        on_stream(reads=(self, indices))
        a, i = self._a, np.append(indices._a, self.shape[axis])
        acc = a.cumsum(axis, dtype)
        acc = np.append(np.zeros([1 if k == axis else n for k, n in enumerate(a.shape)], acc.dtype),
                        acc, axis)
        mask = (i[:-1] >= i[1:]).reshape(-1, *[1] * (a.ndim - axis - 1))
        return ndarray._over(np.where(mask, a.take(i[:-1], axis),
                                      acc.take(i[1:], axis) - acc.take(i[:-1], axis)))


def _unpickled(a):
    return ndarray._over(a)


_OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
              "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and": "bitwise_and",
              "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
              "rshift": "right_shift"}
for _op, _name in _OPERATORS.items():
    setattr(ndarray, f"__{_op}__", lambda s, o, n=_name: s._binary(n, o))
    setattr(ndarray, f"__r{_op}__", lambda s, o, n=_name: s._binary(n, o, True))
    setattr(ndarray, f"__i{_op}__", lambda s, o, n=_name: s._in_place(n, o))
ndarray.__matmul__ = lambda s, o: s._binary("matmul", o)
ndarray.__rmatmul__ = lambda s, o: s._binary("matmul", o, True)
for _op, _name in {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                   "gt": "greater", "ge": "greater_equal"}.items():
    setattr(ndarray, f"__{_op}__", lambda s, o, n=_name: s._binary(n, o))
for _op, _name in {"neg": "negative", "abs": "absolute", "invert": "invert"}.items():
    setattr(ndarray, f"__{_op}__", lambda s, n=_name: __import__("cupy")._ufunc.UFUNCS[n](s))
ndarray.__pos__ = lambda s: s.copy()


def _method(name):
    sig = SIGNATURES["ndarray"].get(name)

    def method(self, *args, **kwargs):
        check_device(self)
        if sig is not None:
            sig.bind((self, *args), kwargs)
        if kwargs.get("keepdims", 0) is None:
            del kwargs["keepdims"]
        if name in ("argmax", "argmin"):
            kwargs.pop("dtype", None)
        if name == "squeeze" and self.ndim == 0:
            return self
        if name == "nonzero":
            _count.waits("nonzero")
        inputs = (self, *arrays_in((*args, *kwargs.values())))
        with np.errstate(all="ignore"):
            r = getattr(self._a, name)(*device_args(args), **device_args(kwargs))
        return wrap(r, inputs, name)

    method.__name__ = name
    return method


for _name in API["ndarray"]:
    if _name not in vars(ndarray) and not _name.startswith("_") and callable(
            getattr(np.ndarray, _name, None)):
        setattr(ndarray, _name, _method(_name))


# ---- helpers ----


def c_order(a):
    return np.asarray(a, order="C")  # np.ascontiguousarray gives a 0-d array a dimension


def rubbish(shape, dtype, order="C"):
    """Returns new memory, filled with values that are not zeros."""
    a = np.empty(shape, dtype, order)
    if a.dtype.kind == "f":
        a.fill(np.nan)
    elif a.dtype.kind in "iu":
        a.fill(77)
    return a


def root(a):
    """Returns the NumPy array that owns the memory."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


def check_device(x):
    device = _streams.current_device()
    if x._device != device:
        raise ValueError(f"The device where the array resides ({x._device}) is different from the "
                         f"current device ({device}). Peer access is unavailable between these "
                         "devices.")


def writeable(x):
    if not x._a.flags.writeable or (x.size > 1 and any(
            n > 1 and s == 0 for n, s in zip(x._a.shape, x._a.strides))):
        raise ValueError("stand-in: a write into a broadcast array, which CuPy would carry out")


def put(x, values, stream=None):
    """Does x[...] = values, NumPy values of x's shape, as work of the stream."""
    if not values.nbytes:
        return
    if values.flags.c_contiguous and x._a.flags.c_contiguous and _memory.pages_at(
            values.ctypes.data, values.nbytes):
        _memory.upload(x, values.ctypes.data, values.nbytes, _streams.queue_of(stream))
        return
    _count.uploads("asarray")
    x._a[...] = values
    with _streams.LOCK:
        queue = _streams.queue_of(stream)
        _memory.wrote(x, queue, queue.tick())


def from_other_device(x):
    """Copies x from another device. On the null stream the copy waits for the work of both devices;
    on another stream it waits for none (CUDA programming guide, "Peer-to-Peer Memory Copy")."""
    with _streams.LOCK:
        here = _streams.current_queue()
        if here.null:
            for there in _streams._queues[x._device]:
                there.tick()
                _streams.join(here.clock, there.clock)
        _memory.read(x, here, here.tick())


def host_index(index):
    """Returns (the index as a tuple for NumPy, True if all of it is basic indexing)."""
    out, basic = [], True
    for p in index if isinstance(index, tuple) else (index,):
        if isinstance(p, ndarray):
            check_device(p)
            out.append(p._a)
            basic = False
        elif p is None or p is Ellipsis or isinstance(p, slice):
            if isinstance(p, slice) and any(isinstance(v, ndarray) for v in (
                    p.start, p.stop, p.step)):
                raise TypeError("slice indices must be integers or None or have an __index__")
            out.append(p)
        elif isinstance(p, (list, tuple)):
            if any(isinstance(v, ndarray) for v in p):
                p = [v._a for v in p]
            out.append(np.asarray(p) if len(p) else np.zeros(0, np.int32))
            _count.uploads("index")
            basic = False
        elif isinstance(p, (np.ndarray, bool, np.bool_)):
            out.append(np.asarray(p))
            _count.uploads("index")
            basic = False
        elif hasattr(p, "__index__"):
            out.append(p.__index__())
        else:
            raise IndexError("only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`)"
                             " and integer or boolean arrays are valid indices")
    return tuple(out), basic


def wrapped(parts, shape):
    """Takes integer arrays modulo the size of their axis: CuPy raises no IndexError for them."""
    n_used = sum(p.ndim if isinstance(p, np.ndarray) and p.dtype == bool else 1
                 for p in parts if p is not None and p is not Ellipsis)
    axis, out = 0, []
    for p in parts:
        if p is Ellipsis:
            axis += len(shape) - n_used
        elif p is not None:
            if isinstance(p, np.ndarray) and p.dtype.kind in "iu":
                if axis < len(shape) and shape[axis]:
                    p = p % shape[axis]
                axis += 1
            else:
                axis += p.ndim if isinstance(p, np.ndarray) else 1
        out.append(p)
    return tuple(out)


def wrap(r, inputs=(), name=None):
    """Returns a NumPy result as device array(s): a view of the input if they share memory, or a new
    array."""
    if isinstance(r, (tuple, list)):
        return type(r)(wrap(x, inputs, name) for x in r)
    if isinstance(r, np.generic):
        r = np.asarray(r)
    if not isinstance(r, np.ndarray):
        if name and r is None:  # in place: sort
            on_stream(reads=inputs, writes=inputs[:1])
        return r
    for x in inputs:
        if root(x._a) is root(r):
            return x if r is x._a else x._view(r)
    if name:
        _count.ops(name)
    on_stream(reads=inputs)
    return ndarray._over(r)


def unsupported(x):
    return TypeError(f"Unsupported type {type(x)}")


def device_args(value):
    """Returns the arguments for NumPy. Refuses a NumPy array among them."""
    if isinstance(value, ndarray):
        check_device(value)
        return value._a
    if isinstance(value, np.ndarray):
        raise unsupported(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(device_args, value))
    if isinstance(value, dict):
        return {k: device_args(v) for k, v in value.items()}
    return value


def arrays_in(value):
    """Yields the device arrays in nested tuples and lists."""
    if isinstance(value, ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from arrays_in(v)
