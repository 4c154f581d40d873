"""Fused kernel or NumPy, GPU or CPU: the only place that chooses.

    arrays of CuPy                        the kernel, through CuPy
    arrays of NumPy, a C++ compiler       the kernel, compiled for the CPU
    anything else                         the reference: float64, two dtypes, no compiler (said
                                          once, with the remedy), the switch turned off

An op asks when its dtypes are final, after autocast, and both answers save the same arrays:

    y = pick(by_kernel, by_numpy, x)(x)

`with minidl.use_fused(False):` turns all kernels off, for comparing.
Test: tests/cuda/test_dispatch.py
"""

import functools
import hashlib
import warnings

import numpy as np
from numpy import ndarray

from minidl import backend, mode
from minidl.cuda import run
from minidl.mode import NoRoom, current, give_up_kernels
from minidl.own_files import write_whole

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)
C_TYPES = {FLOAT: "float", HALF: "__half", np.dtype(np.float64): "double"}
SUM_TYPES = {**C_TYPES, HALF: "float"}  # what sums are made in
SUM_DTYPES = {dtype: backend.accumulate_dtype(dtype) for dtype in C_TYPES}


def pick(kernel, reference, *arrays):
    """`kernel` where it may run on these arrays: switched on, all floating ones among them float32
    or all float16, and on the CPU a compiler. Else `reference`. Integers, numbers and None do not
    count."""
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
    """Whether the kernels may run on these."""
    return pick(True, False, *arrays)


@functools.lru_cache(maxsize=None)
def kernel(file, name, dtype=np.float32, **defines):
    """The kernel `name` of kernels/<file>, its element type T chosen by `dtype`."""
    return run.kernel(file, name, defines={"T": C_TYPES[np.dtype(dtype)], **defines})


@functools.lru_cache(maxsize=None)
def can_launch(file, name, dtype, **defines):
    """Whether this kernel is compiled for the CPU, or can be: for those who change arrays before
    its launch. All others are called again when a launch finds no room (mode.or_numpy)."""
    try:
        kernel(file, name, dtype, **defines).on_cpu
    except NoRoom as error:
        give_up_kernels(error)
        return False
    return True


@functools.lru_cache(maxsize=None)
def generated(text):
    """The path of a .cu file with this text, in the compile cache."""
    from minidl.cuda.host import compiler

    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = compiler.writable_folder()
    while True:
        path = folder / f"fuse-{name}.cu"
        try:
            if path.read_text("utf-8") == text:
                return path
        except (OSError, ValueError):  # not there, or damaged
            pass
        try:
            write_whole(path, text)
            return path
        except OSError:
            folder = compiler.own_folder("has no space left")


def on_cpu(file):
    """The file of kernels/cpu/ that has the form for a CPU of a file of kernels/."""
    folder, _, name = file.rpartition("/")
    return f"{folder}/cpu/{name}" if folder else f"cpu/{name}"


@functools.lru_cache(maxsize=None)
def cpu_compiler():
    """Whether this machine can compile kernels for the CPU, and has a folder to keep them in; says
    so once if it cannot."""
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler, cpu

    try:
        compiler.find_compiler()
        cpu.runtime()  # every kernel needs this library, so it is made here
    except KernelError as error:
        warnings.warn(f"{error}. Until then the plain NumPy ops are used.", RuntimeWarning,
                      stacklevel=2)
        return False
    return True
