"""Matrix products: nearly all the time of a network goes here, so each is one call of BLAS.

    y = a @ b          (..., n, k) @ (..., k, m) -> (..., n, m)
    ga = gy @ b^T      the shapes leave no other choice: (n, m) @ (m, k) -> (n, k)
    gb = a^T @ gy                                        (k, n) @ (n, m) -> (k, m)

A 1-d operand is a row (left) or a column (right) whose extra dimension vanishes from the result.
A linear layer: linear.py. How a kernel multiplies matrices by tiles is a lesson: kernels/matmul.cu.

Test: tests/ops/test_matmul.py, test_matmul_kernel.py   Tutorial: tutorials/01_autograd.py
"""

import math

import numpy as np

from minidl.cuda import rows
from minidl.cuda.launch import scratch
from minidl.function import Function

FILE = "matmul.cu"
SIDES = {1: 16, 2: 16, 3: 64, 4: 128}  # of the square of c that a block of 256 threads makes


def product(xp, a, b):
    """a @ b for arrays of two or more dimensions.

    fp16 on the CPU: BLAS has no half type and NumPy's own loop is ~100 times slower, so multiply in
    fp32 and round once at the end: what tensor cores do, products of halves summed in fp32."""
    if xp is np and a.dtype == np.float16:
        with np.errstate(over="ignore"):  # inf, as on a GPU; a loss scaler looks for it
            a, b = scratch(a.astype(np.float32)), scratch(b.astype(np.float32))
            return scratch(product(xp, a, b), "temporary").astype(np.float16)
    if b.ndim == 2 and a.ndim > 2 and a.size:
        # (..., n, k) @ (k, m): the leading dimensions are just more rows
        y = xp.matmul(a.reshape(-1, a.shape[-1]), b)
        return y.reshape(*a.shape[:-1], b.shape[-1])
    if xp is np:
        a, b = _for_blas(a), _for_blas(b)
    return xp.matmul(a, b)


def _for_blas(a):
    """`a`, or a copy of it if its last two strides are ones that BLAS cannot walk (one of them has
    to be the item size, the other at least a whole row): NumPy would use its own slow loop."""
    rows, cols = a.strides[-2:]
    n, m = a.shape[-2:]
    blas = (cols == a.itemsize and rows >= m * a.itemsize) or (
        rows == a.itemsize and cols >= n * a.itemsize)
    return a if blas or n <= 1 or m <= 1 else np.ascontiguousarray(a)


def as_matrix(x):
    """(..., n) as (rows, n); the rows are counted, since -1 cannot be guessed when n is 0."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def same_dtype(op, a, b, name_a="input", name_b="other"):
    """TypeError unless the dtypes are equal: promoting float32 weights to a float64 input would
    silently halve the speed, and PyTorch refuses it too."""
    if a.dtype != b.dtype:
        raise TypeError(f"{op}: {name_a} is {a.dtype}, {name_b} is {b.dtype}; both must have the "
                        f"same dtype, cast one with .to(...) or .astype(...)")


class MatMul(Function):
    """a @ b. Saves the factor that the other one's gradient needs."""

    precision = "white"
    op = "matmul"

    def forward(self, a, b):
        same_dtype("matmul", a, b)
        if not (a.ndim and b.ndim and a.shape[-1] == b.shape[max(b.ndim - 2, 0)]):
            raise ValueError(f"matmul: shapes {a.shape} @ {b.shape}; want (..., n, k) @ (..., k, m)"
                             ", the last dimension of the first equal to the second last of the "
                             "second (the only one, if it is 1-d)")
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        self.vectors = a.ndim == 1, b.ndim == 1
        self.b_is_shared = b.ndim <= 2  # one b for all matrices of a
        try:
            y = product(self.xp, *self._matrices(a, b))
        except ValueError as error:
            raise ValueError(f"matmul: shapes {a.shape} @ {b.shape}: the dimensions before the "
                             "last two must be equal or 1") from error
        drop = (-2,) * self.vectors[0] + (-1,) * self.vectors[1]
        return y.squeeze(drop) if drop else y

    def _matrices(self, a, b):
        """A row for a 1-d a, a column for a 1-d b."""
        row, column = self.vectors
        return a[None, :] if row and a is not None else a, (
            b[:, None] if column and b is not None else b)

    def backward(self, gy):
        row, column = self.vectors
        a, b = self._matrices(*self.saved)
        gy = self.xp.expand_dims(gy, -1) if column else gy
        gy = self.xp.expand_dims(gy, -2) if row else gy
        ga = gb = None
        if self.needs[0]:  # (..., n, m) @ (..., m, k)
            ga = product(self.xp, gy, b.swapaxes(-1, -2))
            ga = ga.reshape(*ga.shape[:-2], ga.shape[-1]) if row else ga
        if self.needs[1]:  # (..., k, n) @ (..., n, m)
            if self.b_is_shared:  # the sum over the batch is part of the product
                a, gy = as_matrix(a), as_matrix(gy)
            gb = product(self.xp, a.swapaxes(-1, -2), gy)
            gb = gb.reshape(gb.shape[:-1]) if column else gb
        return ga, gb


def column_sums(xp, g):
    """g.sum(0) of a matrix as ones @ g: BLAS reads a matrix 2-3 times faster than NumPy adds its
    rows, on 2048 x 1024 float32. fp16 sums in fp32."""
    if g.dtype == np.float16:
        with np.errstate(over="ignore"):
            return g.sum(axis=0, dtype=np.float32).astype(np.float16)
    return xp.ones(g.shape[0], g.dtype) @ g


def by_kernel(a, b, rung=3, **form):
    """a @ b for contiguous arrays (m, k) and (k, n) of one dtype; sums in float for float16.

    A lesson in tiles: no op calls it, because BLAS is faster.

    rung: 1 naive, 2 tiles in shared memory, 3 and in registers, 4 tensor cores (float16).
    form: form and order, as in `cuda.kernel`."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"matmul: {a.shape} of {a.dtype} and {b.shape} of {b.dtype}; want (m, k) "
                         "and (k, n) of one dtype")
    if rung == 4 and a.dtype != np.float16:
        raise TypeError(f"matmul: tensor cores multiply float16 here, got {a.dtype}; rungs 1 to 3 "
                        "take it")
    xp, (m, k), n = rows.backend_of(a), a.shape, b.shape[1]
    c = xp.empty((m, n), a.dtype)
    if c.size:
        kernel = rows.kernel(FILE, f"matmul_v{rung}", a.dtype, **form)
        side, block = SIDES[rung], 256 if rung == 4 else (16, 16)
        kernel((rows.blocks(n, side), rows.blocks(m, side)), block, (c, a, b, m, n, k))
    return c


def matmul(input, other):
    """input @ other, with NumPy's and PyTorch's rules for 1-d operands and batches."""
    return MatMul.apply(input, other)
