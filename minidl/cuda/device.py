"""Finds and chooses GPUs, and tells how much memory arrays use. The names are as in torch.cuda.

    minidl.cuda.is_available()             True if CuPy finds a GPU
    minidl.cuda.set_device(local_rank)     from now on "cuda" means this GPU, in this thread
    minidl.cuda.synchronize()              waits until the GPU has done all its work

A kernel runs on the current device, and its arrays must be on this device. So each rank chooses its
device before it makes tensors. An op starts work on the GPU and does not wait until the work is
done. So call `synchronize` before you read the clock. Else you measure only the time to start the
work.
Test: tests/cuda/test_device.py
"""

import importlib

import numpy as np

from minidl import backend
from minidl.cuda.index_check import waiting_for_device


def is_available():
    """Returns True if CuPy is installed and finds a GPU that it can use."""
    return device_count() > 0


def device_count():
    """Returns how many GPUs CuPy finds. This is 0 if CuPy is not installed or there is no
    driver."""
    try:
        cupy = backend.import_cupy()
    except ImportError:
        return 0
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or no GPU
        return 0


def current_device():
    """Returns the number of the GPU that "cuda" means in this thread."""
    return backend.import_cupy().cuda.runtime.getDevice()


def set_device(device):
    """Makes a GPU the current GPU of this thread. Then "cuda" means this GPU, and kernels run on
    it.
    device: a number, or a name such as 'cuda:1'. Each rank of a machine passes its local rank, so
    each rank has its own GPU. Raises ValueError if there is no such GPU."""
    n = device_count()
    if device not in (*range(n), *(f"cuda:{i}" for i in range(n))):
        raise ValueError(f"set_device: there is no GPU {device!r}; CuPy finds {n}, numbered from "
                         "0. Are there more ranks than GPUs on this machine?")
    _device(device).use()


def synchronize(device=None):
    """Waits until a GPU has done all its work. device: a number, a name such as 'cuda:1', or None
    for the current GPU. Raises IndexError if an op on this GPU got an index out of range
    (index_check.py)."""
    device = _device(device)
    with waiting_for_device(backend.import_cupy(), device.id):
        device.synchronize()


def memory_allocated(device=None):
    """Returns how many bytes of a GPU's memory the arrays now use. CuPy's pool also holds free
    memory for later arrays. This free memory does not count."""
    with _device(device):
        return backend.import_cupy().get_default_memory_pool().used_bytes()


def memory_reserved(device=None):
    """Returns how many bytes CuPy's pool has taken from the driver: memory in use by arrays, and
    free memory."""
    with _device(device):
        return backend.import_cupy().get_default_memory_pool().total_bytes()


def _device(device):
    """Returns CuPy's Device for a number or a name such as 'cuda:1'. For None, returns the current
    device."""
    if device is None:
        device = "cuda"
    if not isinstance(device, int):
        device = int(backend.full_name(device).removeprefix("cuda:"))
    return backend.import_cupy().cuda.Device(device)


_winograd = True


def set_float32_matmul_precision(precision):
    """Chooses how float32 matrices are multiplied, for the whole process. The name is PyTorch's.

    'highest': in float32.
    'high':    on a GPU, by its tensor cores in TF32. TF32 rounds the factors to 10 bits of fraction
               (float32 has 23) and adds in float32. TF32 is up to 8 times as fast as float32. TF32
               needs compute capability 8.0. A CPU always multiplies in float32.

    This function also switches Winograd's form of 3 x 3 convolutions: 'highest' turns it off, and
    'high' turns it on. Winograd's form computes in float32, but it adds pixels before it
    multiplies, so it rounds differently (ops/conv_cpu.py). When a process starts, products are in
    float32, and Winograd's form is on."""
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
    """Returns 'highest' or 'high'. On a machine without a GPU, returns 'highest'."""
    if not is_available():
        return "highest"
    linalg = cublas_modes()
    return "high" if linalg.get_compute_type(np.float32) == linalg.COMPUTE_TYPE_TF32 else "highest"


def winograd_is_on():
    """Returns True if convolutions may use Winograd's form."""
    return _winograd


def cublas_modes():
    """Returns the module of CuPy that sets the mode of cuBLAS. This module is not public. CuPy's
    public way is the environment variable CUPY_TF32, but CuPy reads this variable only once."""
    backend.import_cupy()
    try:
        return importlib.import_module("cupy._core._routines_linalg")
    except ImportError:
        raise NotImplementedError("minidl cannot set the mode of matrix products in this CuPy; set "
                                  "CUPY_TF32=1 in the environment before Python starts") from None
