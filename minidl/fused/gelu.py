"""GELU, forward and backward in one pass over memory each.

    gelu(x) = x P(x)        d gelu / dx = P + x P'        P: normal distribution, or its tanh form

Saved for backward: x alone, which the layer before made anyway; the slope is computed again.

Kernel: kernels/gelu.cu   Op: minidl/ops/activations.py   Test: tests/fused/test_gelu.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import elementwise, in_packs

FILE = "gelu.cu"
FORMS = {"none": 0, "tanh": 1}


# ---- 1 reference ----


def reference(x, approximate="none"):
    """(gelu(x), its slope), the formulas in float64 with Python's own erfc."""
    x = np.asarray(x, np.float64)
    if approximate == "tanh":
        u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        p = 0.5 * (1 + np.tanh(u))
        slope = 0.5 / np.cosh(u) ** 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    else:
        p = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), otypes=[float])(x)
        slope = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return x * p, p + x * slope


# ---- 2 launch ----


def gelu(x, approximate="none"):
    """x P(x) in new memory."""
    xp = np if type(x) is np.ndarray else backend.xp_of([x])
    x = x if x.flags.c_contiguous else xp.ascontiguousarray(x)
    y = xp.empty(x.shape, x.dtype)
    if xp is np:  # as `launch` does: a call less on the most frequent way
        elementwise(FILE, "gelu", x.dtype, x.size, (y, x, x.size), TANH=FORMS[approximate],
                    ACC=dispatch.SUM_TYPES[x.dtype])
    else:
        launch(xp, "gelu", (y, x), approximate)
    return y


def gelu_backward(x, approximate, gy):
    """gy * slope(x) in new memory."""
    xp = np if type(x) is np.ndarray else backend.xp_of([x, gy])
    x = x if x.flags.c_contiguous else xp.ascontiguousarray(x)
    gy = gy if gy.flags.c_contiguous else xp.ascontiguousarray(gy)
    gx = xp.empty(x.shape, x.dtype)
    if xp is np:
        elementwise(FILE, "gelu_backward", x.dtype, x.size, (gx, gy, x, x.size),
                    TANH=FORMS[approximate], ACC=dispatch.SUM_TYPES[x.dtype])
    else:
        launch(xp, "gelu_backward", (gx, gy, x), approximate)
    return gx


def launch(xp, name, arrays, approximate, **ways):
    """`name` over elements on a CPU, `name`_packs over 16 bytes a thread on a GPU."""
    x = arrays[-1]
    macros = dict(TANH=FORMS[approximate], ACC=dispatch.SUM_TYPES[x.dtype], **ways)
    if xp is np:
        elementwise(FILE, name, x.dtype, x.size, (*arrays, x.size), **macros)
    else:
        in_packs(FILE, f"{name}_packs", x.dtype, arrays, **macros)
