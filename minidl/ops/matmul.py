"""Matrix products. A network spends most of its time here, so each product is one call of BLAS.

    y = a @ b          (..., n, k) @ (..., k, m) -> (..., n, m)
    ga = gy @ b^T      only this order fits the shapes:  (n, m) @ (m, k) -> (n, k)
    gb = a^T @ gy                                        (k, n) @ (n, m) -> (k, m)

A 1-d operand counts as a row if it is on the left, and as a column if it is on the right. This
gives the result a dimension of size 1, which is then removed. linear.py has linear layers.
kernels/matmul.cu shows how a kernel multiplies by tiles.

Test: tests/ops/test_matmul.py, test_matmul_kernel.py   Tutorial: tutorials/01_autograd.py
"""

import math

import numpy as np

from minidl.cuda import cublas, rows
from minidl.cuda.launch import scratch
from minidl.function import Function

FILE = "matmul.cu"
SIDES = {1: 16, 2: 16, 3: 64, 4: 128}  # {rung: side of the square of results that a block computes}


def product(xp, a, b):
    """Returns a @ b for arrays of two or more dimensions.

    fp16 on a CPU is multiplied in fp32 and rounded once at the end, as tensor cores do. BLAS has no
    fp16, and NumPy's own loop is about 100 times slower."""
    if xp is np and a.dtype == np.float16:
        with np.errstate(over="ignore"):  # gives inf, as on a GPU. A loss scaler looks for inf
            a, b = scratch(a.astype(np.float32)), scratch(b.astype(np.float32))
            return scratch(product(xp, a, b), "temporary").astype(np.float16)
    if b.ndim == 2 and a.ndim > 2 and a.size:
        # In (..., n, k) @ (k, m), the leading dimensions count as rows.
        y = product(xp, a.reshape(-1, a.shape[-1]), b)
        return y.reshape(*a.shape[:-1], b.shape[-1])
    if xp is np:
        return np.matmul(_for_blas(a), _for_blas(b))
    try:
        return xp.matmul(a, b)
    except NotImplementedError:  # CuPy refuses to call cuBLAS while a CUDA graph is captured
        return cublas.matmul(a, b)


def _for_blas(a):
    """Returns `a`, or a row-major copy if BLAS cannot read `a`. BLAS can read `a` under two
    conditions. One of the last two strides is the size of an item. The other stride is at least the
    size of a whole row (or column). For other strides NumPy uses its own slow loop."""
    rows, cols = a.strides[-2:]
    n, m = a.shape[-2:]
    blas = (cols == a.itemsize and rows >= m * a.itemsize) or (
        rows == a.itemsize and cols >= n * a.itemsize)
    return a if blas or n <= 1 or m <= 1 else np.ascontiguousarray(a)


def as_matrix(x):
    """Returns x (..., n) as (rows, n). The number of rows is computed, because x.reshape(-1, n)
    fails if n is 0."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def same_dtype(op, a, b, name_a="input", name_b="other"):
    """Raises TypeError if the dtypes differ, as PyTorch does. If one array has float32 and the
    other has float64, a promotion to float64 halves the speed, and the user does not notice why."""
    if a.dtype != b.dtype:
        raise TypeError(f"{op}: {name_a} is {a.dtype}, {name_b} is {b.dtype}; both must have the "
                        f"same dtype. Cast one of them with .to(...) or .astype(...)")


class MatMul(Function):
    """a @ b. Saves `b` if `a` needs a gradient. Saves `a` if `b` needs a gradient."""

    precision = "white"
    op = "matmul"

    def forward(self, a, b):
        same_dtype("matmul", a, b)
        if not (a.ndim and b.ndim and a.shape[-1] == b.shape[max(b.ndim - 2, 0)]):
            raise ValueError(f"matmul: shapes {a.shape} @ {b.shape}; want (..., n, k) @ (..., k, m)"
                             " or (..., n, k) @ (k,). The two sizes k must be equal")
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        self.vectors = a.ndim == 1, b.ndim == 1
        self.b_is_shared = b.ndim <= 2  # True if all matrices of a have the same b
        try:
            y = product(self.xp, *self._matrices(a, b))
        except ValueError as error:
            raise ValueError(f"matmul: shapes {a.shape} @ {b.shape}: the dimensions before the "
                             "last two must be equal or 1") from error
        drop = (-2,) * self.vectors[0] + (-1,) * self.vectors[1]
        return y.squeeze(drop) if drop else y

    def _matrices(self, a, b):
        """Returns (a, b), where a 1-d a becomes a row and a 1-d b becomes a column."""
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
    """Returns g.sum(0) for a matrix g, computed as ones @ g. For 2048 x 1024 float32, BLAS is 2 to
    3 times as fast as NumPy's sum. fp16 is summed in fp32."""
    if g.dtype == np.float16:
        with np.errstate(over="ignore"):
            return g.sum(axis=0, dtype=np.float32).astype(np.float16)
    return product(xp, xp.ones((1, g.shape[0]), g.dtype), g)[0]


def by_kernel(a, b, rung=3, **form):
    """Returns a @ b for contiguous arrays (m, k) and (k, n) of one dtype. float16 is summed in
    float32. This function shows how tiles work. No op calls it, because BLAS is faster.

    rung: 1 naive, 2 tiles in shared memory, 3 tiles also in registers, 4 tensor cores (float16).
    form: the keyword arguments `form` and `order`, which are passed to `cuda.kernel`."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"matmul: {a.shape} of {a.dtype} and {b.shape} of {b.dtype}; want (m, k) "
                         "and (k, n) of one dtype")
    if rung == 4 and a.dtype != np.float16:
        raise TypeError(f"matmul: rung 4 (tensor cores) wants float16; got {a.dtype}. Use one of "
                        "the rungs 1 to 3")
    xp, (m, k), n = rows.backend_of(a), a.shape, b.shape[1]
    c = xp.empty((m, n), a.dtype)
    if c.size:
        kernel = rows.kernel(FILE, f"matmul_v{rung}", a.dtype, **form)
        side, block = SIDES[rung], 256 if rung == 4 else (16, 16)
        kernel((rows.blocks(n, side), rows.blocks(m, side)), block, (c, a, b, m, n, k))
    return c


def matmul(input, other):
    """input @ other. 1-d operands and batches follow the rules of NumPy and PyTorch. Raises
    TypeError if the dtypes differ, and ValueError if the shapes do not fit."""
    return MatMul.apply(input, other)
