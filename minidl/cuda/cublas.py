"""Multiplies matrices on a GPU by direct calls of cuBLAS, NVIDIA's BLAS.

CuPy's own matmul cannot be part of a CUDA graph. CuPy refuses every call of cuBLAS during a
capture, although cuBLAS allows such calls (CuPy 14.2: NotImplementedError in setStream). So during
a capture, `matmul` calls the library that CuPy has loaded, with CuPy's handle. Outside of a
capture, minidl uses CuPy's matmul, which is faster. On a machine with an H100, a call of CuPy's
matmul took 25 us, and a call of `matmul` in this file took 32 us.

cuBLAS expects matrices that are stored column by column, and our arrays are stored row by row. The
same memory, read column by column, is the transposed matrix. So cuBLAS gets the two factors in the
other order:

    c = a @ b    ->    c^T = b^T @ a^T

A matrix may be a view, but one of its last two strides must be 1 element. The other of these two
strides is called the leading dimension in cuBLAS. A view with other strides is copied first.

Source: cuBLAS documentation, cublasGemmEx, cublasGemmStridedBatchedEx, "CUDA Graphs Support".
Test: tests/cuda/test_cublas.py
"""

import ctypes
import functools
import math
import sys
from collections import namedtuple

import numpy as np

from minidl import backend
from minidl.cuda import device

# Constants of cublas_api.h and library_types.h.
TYPES = {"f": 0, "d": 1, "e": 2}  # CUDA_R_32F, CUDA_R_64F, CUDA_R_16F
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
DEFAULT_ALGORITHM = -1
LARGEST = 2**31 - 1  # the largest size, because cuBLAS takes 32-bit integers

# A Layout tells how cuBLAS reads a matrix. transposed: 1 if cuBLAS must transpose it, else 0.
# leading: the leading dimension. step: the number of elements from one matrix of a batch to the
# next.
Layout = namedtuple("Layout", "array transposed leading step")


def matmul(a, b):
    """Returns a @ b. a (..., n, k) and b (..., k, m) are CuPy arrays of two or more dimensions.

    float16 products are summed in float32. If cuBLAS cannot compute the result in one call (another
    dtype, batches that must be broadcast, an empty array), this function calls CuPy's matmul."""
    library = backend.library_of(a)
    cublas = load()
    batch = common_batch(a.shape[:-2], b.shape[:-2])
    fits = 0 < min(a.size, b.size) and max(a.size, b.size) <= LARGEST
    if cublas is None or batch is None or not fits or a.dtype != b.dtype or (
            a.dtype.char not in TYPES):
        return library.matmul(a, b)
    c = library.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    handle = library.cuda.device.get_cublas_handle()
    cublas.cublasSetStream_v2(handle, library.cuda.get_current_stream().ptr)
    product(cublas, handle, layout(library, a), layout(library, b), c, sums_in(c.dtype.char))
    return c


def product(cublas, handle, a, b, c, compute):
    """Computes c = a @ b with one call of cuBLAS. a, b: Layouts. c: a contiguous array with the
    shape of the result. compute: the type in which cuBLAS sums (`sums_in`)."""
    kind, (one, zero) = TYPES[c.dtype.char], factors(c.dtype.char)
    n_rows, n_cols, depth = c.shape[-2], c.shape[-1], a.array.shape[-1]
    n_matrices = math.prod(c.shape[:-2])
    sizes = (n_cols, n_rows, depth)
    if n_matrices == 1:
        status = cublas.cublasGemmEx(
            handle, b.transposed, a.transposed, *sizes, one,
            b.array.data.ptr, kind, b.leading, a.array.data.ptr, kind, a.leading, zero,
            c.data.ptr, kind, n_cols, compute, DEFAULT_ALGORITHM)
    else:
        status = cublas.cublasGemmStridedBatchedEx(
            handle, b.transposed, a.transposed, *sizes, one,
            b.array.data.ptr, kind, b.leading, b.step, a.array.data.ptr, kind, a.leading, a.step,
            zero, c.data.ptr, kind, n_cols, n_rows * n_cols, n_matrices, compute,
            DEFAULT_ALGORITHM)
    if status:
        raise RuntimeError(f"cuBLAS ended with status {status} for {a.array.shape} @ "
                           f"{b.array.shape} of {c.dtype}; cublas_api.h lists the statuses "
                           "(cublasStatus_t)")


def common_batch(of_a, of_b):
    """Returns the batch dimensions of a @ b, or None if the batches must be broadcast. of_a, of_b:
    the batch dimensions of a and b. If one of the two is (), the same matrix is used for the whole
    batch."""
    if of_a == of_b or not of_b:
        return of_a
    return None if of_a else of_b


def layout(library, x):
    """Returns the Layout of x (..., rows, cols). Copies x if cuBLAS cannot read its strides."""
    found = view_layout(x)
    if found is None:
        found = view_layout(library.ascontiguousarray(x))
    return found


def view_layout(x):
    """Returns the Layout of x, or None if it must be copied first."""
    *steps, row, col = (stride // x.itemsize for stride in x.strides)
    *batch, n_rows, n_cols = x.shape
    for i in range(len(batch) - 1):  # cuBLAS has one stride for all batch dimensions
        if batch[i] > 1 and steps[i] != steps[i + 1] * batch[i + 1]:
            return None
    step = steps[-1] if steps else 0
    # The stride of a dimension of size 1 is never used, so any stride is right.
    if (col == 1 or n_cols == 1) and (row >= n_cols or n_rows == 1):
        return Layout(x, 0, max(row, n_cols) if n_rows > 1 else n_cols, step)
    if (row == 1 or n_rows == 1) and (col >= n_rows or n_cols == 1):
        return Layout(x, 1, max(col, n_rows) if n_cols > 1 else n_rows, step)
    return None


@functools.cache
def factors(char):
    """Returns pointers to the numbers 1 and 0, in the type in which products of this dtype are
    summed. char: the letter of the dtype, such as "f"."""
    c_type = ctypes.c_double if char == "d" else ctypes.c_float
    return ctypes.byref(c_type(1)), ctypes.byref(c_type(0))


def sums_in(char):
    """Returns a COMPUTE constant: the type in which cuBLAS multiplies and sums matrices of this
    dtype. For float32 this is TF32 after set_float32_matmul_precision("high"), or with CUPY_TF32=1.
    char: the letter of the dtype, such as "f"."""
    if char == "f":
        modes = device.cublas_modes()
        if modes.get_compute_type(np.float32) == modes.COMPUTE_TYPE_TF32:
            return COMPUTE_32F_FAST_TF32
    return COMPUTE_64F if char == "d" else COMPUTE_32F


@functools.cache
def load():
    """Returns the cuBLAS library that CuPy has loaded. Returns None if this library is not found,
    for example on another platform."""
    cuda = backend.import_cupy().cuda
    try:
        cuda.device.get_cublas_handle()  # makes CuPy load the library
        version = cuda.runtime.runtimeGetVersion() // 1000
        windows = sys.platform == "win32"
        cublas = ctypes.CDLL(f"cublas64_{version}.dll" if windows else f"libcublas.so.{version}")
    except (OSError, AttributeError):
        return None
    pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    matrix, many = [pointer, number, number], [pointer, number, number, long]
    begin = [pointer, number, number, number, number, number, pointer]
    cublas.cublasSetStream_v2.argtypes = [pointer, pointer]
    cublas.cublasGemmEx.argtypes = [
        *begin, *matrix, *matrix, pointer, *matrix, number, number]
    cublas.cublasGemmStridedBatchedEx.argtypes = [
        *begin, *many, *many, pointer, *many, number, number, number]
    return cublas
