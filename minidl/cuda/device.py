"""Which GPUs there are, which one is used, how much memory is lent: PyTorch's `torch.cuda`.

    minidl.cuda.is_available()             whether CuPy finds a GPU
    minidl.cuda.set_device(local_rank)     "cuda" means this one from now on, in this thread
    minidl.cuda.synchronize()              wait for all that was started

A kernel runs on the current device, and its arrays must lie there: each rank chooses its own before
it makes tensors. Work on a GPU is started, not waited for: a time that is measured without
`synchronize` is the time of starting it.   Test: tests/cuda/test_device.py
"""

import functools
import importlib

import numpy as np

from minidl import backend
from minidl.cuda.index_check import waiting_for_device


def is_available():
    """Whether CuPy is installed and finds a GPU that it can use."""
    return device_count() > 0


def device_count():
    """How many GPUs CuPy finds; 0 where it is not installed, or there is no driver."""
    try:
        cupy = backend.import_cupy()
    except ImportError:
        return 0
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or no GPU
        return 0


def current_device():
    """The number of the GPU that "cuda" means in this thread."""
    return backend.import_cupy().cuda.runtime.getDevice()


def set_device(device):
    """Make a GPU, by number or as 'cuda:1', this thread's current one: what "cuda" means, where
    kernels run. Ranks of one machine take one each, by their local rank."""
    n = device_count()
    if device not in (*range(n), *(f"cuda:{i}" for i in range(n))):
        raise ValueError(f"set_device: there is no GPU {device!r}; CuPy finds {n}, numbered from "
                         "0. More ranks than GPUs on this machine?")
    _device(device).use()


def synchronize(device=None):
    """Wait until a GPU, the current one unless given, has done all that was started. An index out
    of range that an op met there is raised now (index_check.py)."""
    device = _device(device)
    with waiting_for_device(backend.import_cupy(), device.id):
        device.synchronize()


def memory_allocated(device=None):
    """Bytes of a GPU that arrays hold now; CuPy's pool keeps more, which it lends again."""
    with _device(device):
        return backend.import_cupy().get_default_memory_pool().used_bytes()


def memory_reserved(device=None):
    """Bytes that CuPy's pool has taken from the driver, in use or not."""
    with _device(device):
        return backend.import_cupy().get_default_memory_pool().total_bytes()


def _device(device):
    """CuPy's Device of a number, a name such as 'cuda:1', or None for the current one."""
    if device is None:
        device = "cuda"
    if not isinstance(device, int):
        device = int(backend.full_name(device).removeprefix("cuda:"))
    return backend.import_cupy().cuda.Device(device)


_winograd = True


def set_float32_matmul_precision(precision):
    """How products of float32 are made: 'highest', in float32; or 'high', on a GPU's tensor cores
    in TF32, which rounds the factors to 10 bits of fraction (float32 has 23) and adds in float32:
    up to 8 times as fast, from compute capability 8.0 on. A CPU multiplies in float32 always.

    A process starts with products in float32, and with Winograd's form of 3 x 3 convolutions, which
    is in float32, too, but adds pixels before it multiplies (ops/conv_cpu.py says what that
    changes). To say 'highest' leaves it out.

    PyTorch's name; it goes for the whole process, as there."""
    global _winograd
    if precision not in ("highest", "high"):
        raise ValueError(f"set_float32_matmul_precision: want 'highest' or 'high', got "
                         f"{precision!r}")
    if is_available():
        linalg = cublas_modes()
        name = "COMPUTE_TYPE_TF32" if precision == "high" else "COMPUTE_TYPE_DEFAULT"
        linalg.set_compute_type(np.float32, getattr(linalg, name))
    _winograd = precision != "highest"


def get_float32_matmul_precision():
    """'highest' or 'high'."""
    if not is_available():
        return "highest"
    linalg = cublas_modes()
    return "high" if linalg.get_compute_type(np.float32) == linalg.COMPUTE_TYPE_TF32 else "highest"


def winograd_is_on():
    """Whether convolutions may be computed in Winograd's form."""
    return _winograd


@functools.cache
def cublas_modes():
    """The module of CuPy that holds what cuBLAS is asked for; CuPy has no public name for it but
    the environment's CUPY_TF32, which is read once."""
    backend.import_cupy()
    try:
        return importlib.import_module("cupy._core._routines_linalg")
    except ImportError:
        raise NotImplementedError("this CuPy keeps the mode of matrix products elsewhere; set "
                                  "CUPY_TF32=1 in the environment before Python starts") from None
