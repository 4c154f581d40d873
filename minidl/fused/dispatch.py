"""Fused kernel or plain op, GPU or CPU: the only place that chooses.

    arrays of CuPy                        the kernel, through CuPy
    arrays of NumPy, a C++ compiler       the kernel, compiled for the CPU
    anything else                         the plain ops of minidl/ops: no compiler (said once, with
                                          the remedy), float64, the switch turned off

`nn.functional` offers `either(fused, plain)` under the op's name, so layers need not know.
`with minidl.use_fused(False):` turns all kernels off, for comparing.

Test: tests/fused/test_dispatch.py
"""

import functools
import hashlib
import os
import warnings
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from minidl import backend
from minidl.function import autocasting
from minidl.tensor import Tensor

_enabled = ContextVar("minidl.use_fused", default=True)

C_TYPES = {np.dtype(np.float32): "float", np.dtype(np.float16): "__half",
           np.dtype(np.float64): "double"}


@contextmanager
def use_fused(flag):
    """Use the fused kernels inside the block (True, the default everywhere) or do not."""
    token = _enabled.set(bool(flag))
    try:
        yield
    finally:
        _enabled.reset(token)


def usable(*inputs, op=None):
    """Whether the kernels may run on these: switched on, all floating Tensors and arrays among
    `inputs` float32 or all float16, and on the CPU a compiler. Other inputs do not count.
    op: the name of the op that will get them through `Function.apply`: autocast says in which dtype
    it runs, and bfloat16 reaches its kernel as float32."""
    if not _enabled.get():
        return False
    dtypes = {x.dtype for x in inputs if hasattr(x, "dtype") and x.dtype.kind in "fV"}
    autocast = autocasting.get()
    if op and autocast is not None and all(dtype.itemsize <= 4 for dtype in dtypes):
        dtypes = {autocast.target(op, dtypes)}
    if op and len(dtypes) == 1 and backend.is_bfloat16(*dtypes):
        dtypes = {np.dtype(np.float32)}
    if len(dtypes) != 1 or not dtypes <= {np.dtype(np.float32), np.dtype(np.float16)}:
        return False
    arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
    on_cpu = any(isinstance(a, np.ndarray) for a in arrays)
    return not on_cpu or cpu_compiler()


def either(fused, plain, accepts=None):
    """A function with `plain`'s signature that runs `fused` where `usable` (and `accepts(*args)`,
    for arguments that only the plain op knows), else `plain`."""

    @functools.wraps(plain)
    def op(*args, **options):
        if usable(*args, op=plain.__name__) and (accepts is None or accepts(*args, **options)):
            return fused(*args, **options)
        return plain(*args, **options)

    return op


def sum_type(dtype):
    """The C type that sums elements of this dtype."""
    return C_TYPES[backend.accumulate_dtype(dtype)]


@functools.lru_cache(maxsize=None)
def kernel(file, name, dtype=np.float32, **defines):
    """The kernel `name` of kernels/<file>, its element type T chosen by `dtype`."""
    from minidl import cuda  # here: most programs that import minidl launch no kernel

    return cuda.kernel(file, name, defines={"T": C_TYPES[np.dtype(dtype)], **defines})


@functools.lru_cache(maxsize=None)
def generated(text):
    """The path of a .cu file with this text, in the compile cache."""
    from minidl.cuda.host import compiler

    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = compiler.writable_folder() / f"fuse-{name}.cu"
    if not path.is_file():
        part = path.with_suffix(f".{os.getpid()}")  # ranks write at once: each whole, or not
        part.write_text(text)
        part.replace(path)
    return path


@functools.lru_cache(maxsize=None)
def cpu_compiler():
    """Whether this machine can compile kernels for the CPU; says so once if it cannot."""
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler

    try:
        compiler.find_compiler()
    except KernelError as error:
        warnings.warn(f"{error} Until then the plain NumPy ops are used.", RuntimeWarning,
                      stacklevel=2)
        return False
    return True
