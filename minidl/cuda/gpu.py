"""Runs a .cu file on a GPU. CuPy's RawModule compiles the file and its includes.

Unlike CuPy, this file compares the arguments with the signature in the .cu file. If the parameter
is a `float*` and the argument is a float64 array, that is an error. A Python number is converted to
the parameter's type (CuPy passes 64 bits).

A training step launches hundreds of kernels, so a launch must take little time. The order of the
arguments is computed once, when the GpuKernel is made. A number is converted when it is first
passed. A launch checks only three things of an array: its type, its dtype, and whether it is
contiguous.
Test: tests/cuda/test_gpu.py   Measured: benchmarks/bench_launch.py
"""

import functools
from operator import itemgetter
from time import monotonic

import cupy
import numpy as np

from minidl.cuda.host import arguments
from minidl.cuda.host.includes import Edited, files, for_nvrtc, inline_includes
from minidl.cuda.host.source import Source
from minidl.cuda.run import only_one

# The most tuples of numbers that a kernel remembers. A limit is needed, because a step counter
# makes a new tuple in each step.
MAX_KNOWN = 256


class GpuKernel:
    """One kernel of a file, compiled for CuPy arrays."""

    array_type = cupy.ndarray

    def __init__(self, path, name, defines, options):
        self._files = files(path)
        self._stamp = self._files.stamp()
        source = Source(path, inline_includes(path), defines)
        name = name or only_one([f.name for f in source.kernels], path)
        parameters = source.parameters(name)
        self.signature = arguments.Signature(name, parameters)
        # `name` is passed as a name expression, so that NVRTC returns the compiled name. The
        # compiled name differs from `name` for a template and for a kernel without extern "C".
        module = _module(for_nvrtc(path, defines), ("-std=c++17", *options), (name,))
        self._launch, self._known = module.get_function(name), {}
        pointers = [i for i, p in enumerate(parameters) if p.kind == "pointer"]
        self._pointers = [(i, parameters[i].dtype and np.dtype(parameters[i].dtype),
                           parameters[i].lanes > 1) for i in pointers]
        self._scalars = scalars = [i for i, p in enumerate(parameters) if p.kind == "scalar"]
        # _arranged picks CuPy's arguments from (*args, *converted numbers), in the order of the
        # kernel's parameters.
        self._n = n = len(parameters)
        self._numbers = _getter(scalars)
        self._arranged = _getter([n + scalars.index(i) if i in scalars else i for i in range(n)])

    def __call__(self, grid, block, args, shared_mem=0):
        files, stamp = self._files, self._stamp
        if (files.dates is not stamp or monotonic() > files.due) and files.differ(stamp):
            raise Edited(f"kernel {self.signature}: {files.path} has changed")
        if len(args) != self._n:
            raise TypeError(f"kernel {self.signature}: it takes {self._n} arguments, got "
                            f"{len(args)}")
        args = args if type(args) is tuple else tuple(args)
        ndarray = self.array_type
        for i, dtype, is_vector in self._pointers:
            a = args[i]
            if a is not None and (type(a) is not ndarray or a.dtype is not dtype or is_vector
                                  or not a.flags.c_contiguous):
                _check(self.signature, i, a)
        numbers = self._numbers(args)
        ready = self._known.get(numbers)
        if ready is None:
            ready = self._convert(numbers)
        grid = (grid, 1, 1) if type(grid) is int else arguments.dims(grid)
        block = (block, 1, 1) if type(block) is int else arguments.dims(block)
        if not shared_mem:
            self._launch(grid, block, self._arranged(args + ready))
            return
        # CUDA allows more than 48 KiB only on request (CUDA programming guide, "Shared memory").
        if shared_mem > 48 * 1024:
            self._launch.max_dynamic_shared_size_bytes = shared_mem
        self._launch(grid, block, self._arranged(args + ready), shared_mem=shared_mem)

    def _convert(self, numbers):
        """Returns the numbers, converted to the types of their parameters, and remembers the
        result. Numbers that compare equal share one result, so -0.0 may arrive as 0.0."""
        ready = []
        for i, number in zip(self._scalars, numbers, strict=True):
            p = self.signature.parameters[i]
            ready.append(np.dtype(p.dtype).type(self.signature.scalar(p, number)))
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[numbers] = tuple(ready)
        return self._known[numbers]


def _getter(places):
    """Returns a function that takes a tuple and returns its elements at these places, as a
    tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple(items[i] for i in places)


def _check(signature, i, a):
    """Raises TypeError or ValueError if array `a` cannot be passed for parameter i."""
    p = signature.parameters[i]
    where = f"kernel {signature}: argument {p.name!r}"
    if isinstance(a, np.ndarray):
        raise TypeError(f"{where} is an array on the CPU, but other arguments are on a GPU. Move "
                        "the arrays to one device with .to('cuda') or .to('cpu')")
    if not isinstance(a, cupy.ndarray):
        raise TypeError(f"{where} is a pointer: pass a CuPy array, got {type(a).__name__}")
    if p.dtype is not None and a.dtype != np.dtype(p.dtype):
        raise TypeError(
            f"{where} points to {p.ctype}; got an array of {a.dtype} with shape {a.shape}")
    if not a.flags.c_contiguous:
        raise ValueError(f"{where} must be contiguous; got strides {a.strides} for shape {a.shape}")
    alignment = min(16, p.lanes * a.itemsize)
    if p.lanes > 1 and a.data.ptr % alignment:
        raise ValueError(f"{where} is a {p.ctype}*: its address must be a multiple of {alignment}")


@functools.lru_cache(maxsize=256)
def _module(text, options, names):
    return cupy.RawModule(code=text, options=options, backend="nvrtc", name_expressions=names)
