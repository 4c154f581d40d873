"""Runs a .cu file on a GPU: CuPy's RawModule compiles it, its includes put in place.

Added to CuPy: the arguments are compared with the signature in the file. A float64 array for a
`float*` is an error, and a Python number, which CuPy would pass as 64 bits, gets the parameter's
type.   Test: tests/cuda/test_gpu.py
"""

import functools

import cupy
import numpy as np

from minidl.cuda.host import arguments
from minidl.cuda.host.includes import for_nvrtc, inline_includes
from minidl.cuda.host.source import Source
from minidl.cuda.run import only_one


class GpuKernel:
    """One kernel of a file for CuPy arrays."""

    def __init__(self, path, name, defines, options):
        source = Source(path, inline_includes(path), defines)
        name = name or only_one([f.name for f in source.kernels], path)
        self.signature = arguments.Signature(name, source.parameters(name))
        # Always by a name expression, which NVRTC answers with the compiled name: of a kernel
        # without extern "C", as of a template, it is another one.
        module = _module(for_nvrtc(path, defines), ("-std=c++17", *options), (name,))
        self._function = module.get_function(name)

    def __call__(self, grid, block, args, shared_mem=0):
        s = self.signature
        if len(args) != len(s.parameters):
            raise TypeError(f"kernel {s}: it takes {len(s.parameters)} arguments, got {len(args)}")
        ready = tuple(_ready(s, p, a) for p, a in zip(s.parameters, args, strict=True))
        # beyond this a kernel must ask (CUDA programming guide, "Shared memory")
        if shared_mem > 48 * 1024:
            self._function.max_dynamic_shared_size_bytes = shared_mem
        self._function(arguments.dims(grid), arguments.dims(block), ready, shared_mem=shared_mem)


def _ready(signature, p, a):
    """The argument for CuPy: a checked array, or a number of the parameter's own type."""
    if p.kind == "scalar":
        return np.dtype(p.dtype).type(signature.scalar(p, a))
    if a is None:
        return None
    where = f"kernel {signature}: argument {p.name!r}"
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
    return a


@functools.lru_cache(maxsize=256)
def _module(text, options, instances):
    return cupy.RawModule(code=text, options=options, backend="nvrtc", name_expressions=instances)
