"""Matrix product by a kernel: a lesson in tiles. Training multiplies by BLAS (minidl/ops/matmul.py)
and, in linear layers on some CPUs, by kernels/linear.cu (linear.py).

    >>> matmul(a, b, rung=3)      rungs: 1 naive, 2 tiles in shared memory, 3 and in registers,
                                  4 tensor cores (float16)

Kernels: kernels/matmul.cu   Test: tests/fused/test_matmul.py
"""

import numpy as np

from minidl.cuda import rows as r

FILE = "matmul.cu"
SIDES = {1: 16, 2: 16, 3: 64, 4: 128}  # of the square of c that a block of 256 threads makes


# ---- 1 reference ----


def reference(a, b):
    """What np.matmul says."""
    return a @ b


# ---- 2 launch ----


def matmul(a, b, rung=3, **ways):
    """a @ b for contiguous arrays (m, k) and (k, n) of one dtype; sums in float for float16.
    ways: form and order, as in `cuda.kernel`."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"matmul: {a.shape} of {a.dtype} and {b.shape} of {b.dtype}; want (m, k) "
                         "and (k, n) of one dtype")
    if rung == 4 and a.dtype != np.float16:
        raise TypeError(f"matmul: tensor cores multiply float16 here, got {a.dtype}; rungs 1 to 3 "
                        "take it")
    xp, (m, k), n = r.backend_of(a), a.shape, b.shape[1]
    c = xp.empty((m, n), a.dtype)
    if c.size:
        kernel = r.kernel(FILE, f"matmul_v{rung}", a.dtype, **ways)
        side, block = SIDES[rung], 256 if rung == 4 else (16, 16)
        kernel((r.blocks(n, side), r.blocks(m, side)), block, (c, a, b, m, n, k))
    return c
