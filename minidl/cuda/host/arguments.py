"""Checks a launch before it runs, and packs its arguments. Errors name the kernel's signature.

    kernel(grid, block, args)   grid 4096 | (64, 64)   block 256 | (32, 8)   args: arrays, numbers

A GPU accepts a float64 array for a `float*`, and reads wrong numbers. So a launch checks the dtype
of each array, and converts no array. A launch converts only a Python number, to the parameter's
type (CuPy passes 64 bits).
Test: tests/cuda/host/test_arguments.py
"""

import ctypes
import functools
import math
import struct

import numpy as np

from minidl.backend import _BY_HEADER, _DATA, _word_at
from minidl.cuda.host.includes import KernelError

# The most threads of a block (CUDA's limit), and the most bytes of shared memory of a block (227
# KiB, as on sm_90).
MAX_THREADS, MAX_SHARED = 1024, 232448
MAX_GRID_X, MAX_GRID_YZ = 2**31 - 1, 65535

# bits of ndarray.flags.num (NumPy C-API, NPY_ARRAY_*)
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

_ndarray = np.ndarray

_struct_dtype = np.dtype([("a struct", "V1")])  # stands for a struct. No array has this dtype


class Signature:
    """The parameters of one kernel. Checks and packs the arguments of a launch.

    struct_sizes: {number of the parameter: bytes of its struct}.
    most:         the most threads that a block may have.
    Raises KernelError if a parameter has a type that Python cannot pass."""

    def __init__(self, name, parameters, uses_dynamic_shared=False, struct_sizes=None,
                 most=MAX_THREADS):
        self.name, self.parameters, self.uses_dynamic_shared = name, parameters, uses_dynamic_shared
        self.most = most
        self._struct_sizes = struct_sizes or {}  # {number of the argument: bytes}
        self._structs = []  # the structs of the last launches, kept while a launch may run
        for p in parameters:
            if p.kind == "other":
                raise KernelError(
                    f"{self}: parameter {p.name!r} has type {p.ctype!r}, which Python cannot pass; "
                    "Python can pass scalars, vectors and structs, and pointers to these")
        # a packed launch has 40 bytes and then 8 bytes for each argument (kernels/host/runtime.h)
        slots = (f"{p.code}{8 - struct.calcsize('=' + p.code)}x" for p in parameters)
        self._struct = struct.Struct("=" + "".join(slots))
        # An entry is (number of the argument, the dtype that it must have or None for any dtype,
        # the bits of flags.num that it must have).
        self._pointers = [(i, _struct_dtype if i in self._struct_sizes else
                           p.dtype and np.dtype(p.dtype),
                           _CONTIGUOUS | _ALIGNED | (0 if p.const else _WRITEABLE))
                          for i, p in enumerate(parameters) if p.kind == "pointer"]
        # A struct is packed as a pointer. _struct_dtype matches no array, so _other_pointer checks
        # structs and pointers to structs.
        self._pointers += [(i, _struct_dtype, 0) for i, p in enumerate(parameters)
                           if p.kind == "struct"]
        self._arrays = [i for i, _, _ in self._pointers]
        self._scalars = {i: p for i, p in enumerate(parameters) if p.kind == "scalar"}
        # pack_objects can be used if there are arrays but no structs.
        self.names_objects = bool(self._pointers) and not self._struct_sizes

    def wanted(self):
        """Returns the conditions on the arrays of a launch, a list of (i, dtype, flags). Argument i
        must have this dtype and these flags. `dtype` is the id of a NumPy dtype, or 0 for any
        dtype. `flags` are bits of NumPy's array.flags.num. kernels/host/arrays.cpp checks the
        conditions."""
        return [(i, 0 if dtype is None else id(dtype), flags) for i, dtype, flags in self._pointers]

    def pack_objects(self, grid, block, args, shared_mem, order, threads):
        """Returns the same as pack(), but with id(array) instead of each array's address. It checks
        less than pack(). Returns None if the caller must use pack()."""
        words = list(args)
        try:
            for i in self._arrays:
                words[i] = id(args[i])
            head = _head(grid, block, shared_mem, order, threads, self.most)
            return head + self._struct.pack(*words)
        except (struct.error, OverflowError, TypeError, ValueError, IndexError):
            return None

    def __str__(self):
        return f"{self.name}({', '.join(p.text for p in self.parameters)})"

    def pack(self, grid, block, args, shared_mem, order, threads):
        """Returns the bytes of a MinidlLaunch. Raises TypeError, ValueError or OverflowError if an
        argument is wrong."""
        try:
            head = _head(grid, block, shared_mem, order, threads, self.most)
        except ValueError as error:
            self._fail(ValueError, str(error))
        except TypeError:  # grid or block is a list, which has no hash
            return self.pack(dims(grid), dims(block), args, shared_mem, order, threads)
        if self.uses_dynamic_shared and not shared_mem:
            self._fail(ValueError,
                       "the kernel declares `extern __shared__`; pass the size of this memory in "
                       "bytes, as shared_mem=")
        if len(args) != len(self.parameters):
            self._fail(TypeError, f"it takes {len(self.parameters)} arguments, got {len(args)}")
        words = list(args)
        for i, dtype, flags in self._pointers:
            a = args[i]
            if (type(a) is _ndarray and (a.dtype is dtype or a.dtype == dtype or dtype is None)
                    and a.flags.num & flags == flags):
                # The code of `address(a)` is repeated here, because a call would take a tenth of a
                # launch's time.
                words[i] = _word_at(id(a) + _DATA).value if _BY_HEADER else a.ctypes.data
            else:
                words[i] = self._other_pointer(i, a)
        try:
            return head + self._struct.pack(*words)
        except (struct.error, OverflowError, TypeError, ValueError):
            for i, p in self._scalars.items():
                words[i] = self.scalar(p, args[i])
            return head + self._struct.pack(*words)

    def scalar(self, p, value):
        """Returns `value` as a Python number that fits the parameter `p`. Raises TypeError or
        OverflowError if `value` does not fit."""
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if isinstance(value, np.generic):
            value = value.item()
        wanted = np.dtype(p.dtype)
        if not isinstance(value, (bool, int, float)):
            self._fail(
                TypeError,
                f"argument {p.name!r} is of type {p.ctype}: pass a number, got {_what(value)}")
        if wanted.kind == "b":
            return bool(value)
        if wanted.kind in "iu":
            if isinstance(value, float):
                self._fail(TypeError, f"argument {p.name!r} is of type {p.ctype}: pass an integer, "
                           f"got the float {value!r}")
            limits = np.iinfo(wanted)
            if not limits.min <= value <= limits.max:
                self._fail(OverflowError,
                           f"argument {p.name!r} is {value}, beyond the range of {p.ctype}")
            return int(value)
        largest = float(np.finfo(wanted).max)
        if math.isfinite(value) and abs(value) > largest:
            self._fail(
                OverflowError,
                f"argument {p.name!r} is {value!r}, beyond the largest {p.ctype}, {largest:.7g}")
        return float(value)

    def _other_pointer(self, i, a):
        """Handles argument i if pack() did not accept it as an array. Returns 0 for None, and the
        address of a copy for a struct. For a wrong argument, raises TypeError or ValueError."""
        p = self.parameters[i]
        if p.kind == "struct":
            return self._struct_address(i, a)
        where, wanted = f"argument {p.name!r}", np.dtype(p.dtype) if p.dtype else "any dtype"
        if a is None:
            return 0  # CuPy passes None as NULL, too
        if not isinstance(a, np.ndarray):
            hint = "; a Tensor's array is its .array" if hasattr(a, "requires_grad") else ""
            self._fail(TypeError,
                       f"{where} is a pointer: pass an array of {wanted}, got {_what(a)}{hint}")
        size = self._struct_sizes.get(i)
        if size and not (a.dtype.names and a.itemsize == size):
            self._fail(TypeError, f"{where} points to {p.ctype}, a struct of {size} bytes: pass an "
                       "array of a NumPy structured dtype with the same members in the same order, "
                       "np.dtype(..., align=True), which adds the same padding as C; got "
                       f"{_what(a)}, {a.itemsize} bytes each")
        is_bf16 = "bfloat16" in p.ctype and a.dtype.name == "bfloat16"  # from the package ml_dtypes
        if p.dtype is not None and a.dtype != wanted and not is_bf16:
            self._fail(TypeError, f"{where} points to {p.ctype}, which is {wanted}; got {_what(a)}")
        if not a.flags.c_contiguous:
            self._fail(ValueError, f"{where} must be contiguous, because a kernel counts elements "
                       f"from a pointer; got strides {a.strides} for shape {a.shape}. Use "
                       "np.ascontiguousarray, and copy a result back")
        if not p.const and not a.flags.writeable:
            self._fail(ValueError,
                       f"{where} is not const in the kernel, but the array is read-only")
        if not a.flags.aligned:
            self._fail(ValueError,
                       f"{where} must begin at a multiple of {a.itemsize} bytes, the size of its "
                       "elements; copy the array")
        return a.ctypes.data

    def with_structs(self, packed):
        """Returns a ctypes buffer: the bytes of a launch, followed by its structs."""
        raws = {i: raw for i in self._struct_sizes for raw in self._structs
                if raw.ctypes.data == int.from_bytes(packed[40 + 8 * i : 48 + 8 * i], "little")}
        buffer = ctypes.create_string_buffer(packed + b"".join(map(bytes, raws.values())))
        at = ctypes.addressof(buffer) + len(packed)
        for i, raw in raws.items():
            ctypes.c_uint64.from_buffer(buffer, 40 + 8 * i).value = at
            at += raw.nbytes
        return buffer

    def _struct_address(self, i, value):
        """Copies a struct that is passed by value, and returns the address of the copy. value: a
        NumPy record, a ctypes.Structure, or bytes."""
        p = self.parameters[i]
        try:
            raw = np.frombuffer(bytes(memoryview(value)), np.uint8)
        except TypeError:
            self._fail(TypeError, f"argument {p.name!r} is a {p.ctype} by value: pass a record of "
                       f"a NumPy structured dtype, or a ctypes.Structure, got {_what(value)}")
        size = self._struct_sizes.get(i, raw.nbytes)
        if raw.nbytes != size:
            self._fail(ValueError, f"argument {p.name!r} is a {p.ctype} of {size} bytes in C; got "
                       f"{raw.nbytes} bytes. Does it have the same members in the same order? "
                       "np.dtype(..., align=True) adds the same padding as C")
        raw = np.concatenate([raw, np.zeros(-size % 16, np.uint8)])
        self._structs = [*self._structs, raw][-4 * len(self._struct_sizes) :]
        return raw.ctypes.data

    def _fail(self, kind, text):
        raise kind(f"kernel {self}: {text}")


@functools.lru_cache(maxsize=1024)
def _head(grid, block, shared_mem, order, threads, most):
    """Returns the first bytes of a packed launch, before the arguments. Raises ValueError if the
    launch exceeds CUDA's limits. The results are cached, because training repeats the same
    launches."""
    g, b = dims(grid), dims(block)
    if min(b) < 1 or math.prod(b) > most:
        why = "" if most == MAX_THREADS else ", because its __launch_bounds__ has this limit"
        raise ValueError(f"block {b} has {math.prod(b)} threads; it needs 1 to {most}{why}")
    if 0 in g:
        raise ValueError(
            f"grid {g} has no blocks, and a GPU refuses such a launch. If there is no work, skip "
            "the launch")
    if not (0 < g[0] <= MAX_GRID_X and 0 < g[1] <= MAX_GRID_YZ and 0 < g[2] <= MAX_GRID_YZ):
        raise ValueError(
            f"grid {g}: each number must be at least 1, and at most ({MAX_GRID_X}, {MAX_GRID_YZ}, "
            f"{MAX_GRID_YZ})")
    if not 0 <= shared_mem <= MAX_SHARED:
        raise ValueError(f"shared_mem is {shared_mem} bytes; a block has at most {MAX_SHARED} "
                         "bytes")
    return struct.pack("=6IQ2i", *g, *b, int(shared_mem), order, threads)


def dims(size):
    """Returns (x, y, z) for an int or a tuple of one to three ints."""
    size = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    if not 1 <= len(size) <= 3:
        raise ValueError(f"want 1 to 3 numbers for a grid or block; got {size}")
    return tuple(int(n) for n in size) + (1,) * (3 - len(size))


def _what(value):
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"{type(value).__name__} {value!r}"[:60]
