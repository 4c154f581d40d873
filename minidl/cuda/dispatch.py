"""Chooses between a fused kernel and NumPy, on the GPU and on the CPU. No other file chooses.

    arrays of CuPy                        the kernel, through CuPy
    arrays of NumPy, a C++ compiler       the kernel, compiled for the CPU
    anything else                         the reference, in NumPy. Examples are float64, two dtypes,
                                          kernels that are turned off, and no compiler (one warning
                                          tells what to install)

An op calls pick() after autocast, when its dtypes are final. For backward, the kernel and the
reference save the same arrays. A call of pick():

    y = pick(by_kernel, by_numpy, x)(x)

`with minidl.use_fused(False):` turns all kernels off, to compare kernel and reference.
Test: tests/cuda/test_dispatch.py
"""

import functools
import hashlib
import warnings

import numpy as np
from numpy import ndarray

from minidl import backend, mode
from minidl.cuda import run
from minidl.cuda.host.includes import KernelError
from minidl.mode import NoRoom, current, give_up_kernels
from minidl.own_files import write_whole

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)
C_TYPES = {FLOAT: "float", HALF: "__half", np.dtype(np.float64): "double"}
SUM_TYPES = {**C_TYPES, HALF: "float"}  # {dtype: the C type of its sums}
SUM_DTYPES = {dtype: backend.accumulate_dtype(dtype) for dtype in C_TYPES}


def pick(kernel, reference, *arrays):
    """Returns `kernel` if it may run on these arrays, else `reference`.

    The kernel may run if kernels are turned on and at least one array is floating. All floating
    arrays must have the same dtype, float32 or float16. For NumPy arrays there must also be a C++
    compiler. Arrays of integers, numbers and None are ignored."""
    common, on_host = None, False
    for a in arrays if current().kernels else ():
        if isinstance(a, ndarray):
            on_host, dtype = True, a.dtype
        else:
            dtype = getattr(a, "dtype", None)
        if dtype is not common and dtype is not None and dtype.kind in "fV":
            if dtype is not FLOAT and dtype not in (FLOAT, HALF) or common not in (None, dtype):
                return reference
            common = dtype
    if common is None or on_host and (mode.kernels_given_up or not cpu_compiler()):
        return reference
    return kernel


def usable(*arrays):
    """Returns True if kernels may run on these arrays, as in pick()."""
    return pick(True, False, *arrays)


@functools.lru_cache(maxsize=None)
def kernel(file, name, dtype=np.float32, **defines):
    """Returns the kernel `name` of kernels/<file>. dtype: the kernel's element type T."""
    return run.kernel(file, name, defines={"T": C_TYPES[np.dtype(dtype)], **defines})


@functools.lru_cache(maxsize=None)
def can_launch(file, name, dtype, **defines):
    """Returns True if this kernel is compiled for the CPU, or can be compiled.

    If there is no disk space to compile a kernel, mode.or_numpy runs the op a second time, with
    NumPy. An op that changes arrays before it launches the kernel must not run twice. So such an op
    calls can_launch() before the changes."""
    try:
        kernel(file, name, dtype, **defines).on_cpu
    except NoRoom as error:
        give_up_kernels(error)
        return False
    return True


@functools.lru_cache(maxsize=None)
def generated(text):
    """Writes a .cu file with this text into the compile cache. Returns its path."""
    from minidl.cuda.host import compiler

    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = compiler.writable_folder()
    while True:
        path = folder / f"fuse-{name}.cu"
        try:
            if path.read_text("utf-8") == text:
                return path
        except (OSError, ValueError):  # the file is missing or damaged
            pass
        try:
            write_whole(path, text)
            return path
        except OSError:
            folder = compiler.own_folder("has no space left")


def on_cpu(file):
    """Returns the name of the file with the CPU version of a kernel file: "a.cu" gives
    "cpu/a.cu"."""
    folder, _, name = file.rpartition("/")
    return f"{folder}/cpu/{name}" if folder else f"cpu/{name}"


@functools.lru_cache(maxsize=None)
def cpu_compiler():
    """Returns True if this machine can compile kernels for the CPU and has a folder to keep the
    compiled kernels. If not, warns once."""
    from minidl.cuda.host import compiler, cpu

    try:
        compiler.find_compiler()
        cpu.runtime()  # compiles the library that every kernel needs
    except KernelError as error:
        warnings.warn(f"{error}. Until then the plain NumPy ops are used.", RuntimeWarning,
                      stacklevel=2)
        return False
    return True
