"""GELU with and without the bias before it, forward and backward in one pass over memory each.

    gelu(x) = x P(x)        d gelu / dx = P + x P'        P: normal distribution, or its tanh form

Saved for backward: x alone, which the linear layer made anyway; the slope is computed again. The
bias gradient is summed on the way, in `chunks` partial rows that the array library adds up.

Kernel: kernels/bias_gelu.cu   Test: tests/fused/test_bias_gelu.py
"""

import math

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.fused import dispatch
from minidl.fused.launch import contiguous, elementwise, over_rows, over_rows_with_sums

FILE = "bias_gelu.cu"
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


def macros(dtype, approximate):
    """The form of P, and the type to compute in."""
    return dict(TANH=FORMS[approximate], ACC=dispatch.sum_type(dtype))


def with_bias(out, x, bias, approximate):
    """out = gelu(x + bias); x (..., cols), bias (cols,)."""
    xp, cols = backend.xp_of([x]), bias.size
    rows, options = x.size // max(cols, 1), macros(x.dtype, approximate)
    over_rows(FILE, "bias_gelu", x.dtype, xp, rows, cols, (out, x, bias), **options)


def with_bias_backward(gx, gy, x, bias, approximate):
    """gx = gy * slope(x + bias); returns the bias gradient, the sum of gx over rows."""
    xp, cols = backend.xp_of([x]), bias.size
    rows, options = x.size // max(cols, 1), macros(x.dtype, approximate)
    name = "bias_gelu_backward"
    return over_rows_with_sums(FILE, name, xp, rows, cols, gx, (gy, x, bias), **options)


# ---- 3 Function ----


class Gelu(Function):
    """x P(x). Saves x."""

    promotes = "float"

    def forward(self, x, approximate="none"):
        if approximate not in FORMS:
            raise ValueError(f"gelu: approximate wants 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate
        x = contiguous(self.xp, x)
        out = self.xp.empty_like(x)
        elementwise(FILE, "gelu", x.dtype, x.size, (out, x, x.size), **macros(x.dtype, approximate))
        self.save(x)
        return out

    def backward(self, gy):
        (x,) = self.saved
        gy = contiguous(self.xp, gy)
        gx, options = self.xp.empty_like(x), macros(x.dtype, self.approximate)
        elementwise(FILE, "gelu_backward", x.dtype, x.size, (gx, gy, x, x.size), **options)
        return gx


class BiasGelu(Function):
    """gelu(x + bias). Saves x and bias; x + bias never reaches memory."""

    promotes = "float"

    def forward(self, x, bias, approximate="none"):
        if approximate not in FORMS:
            raise ValueError(f"bias_gelu: approximate wants 'none' or 'tanh', got {approximate!r}")
        if bias.ndim != 1 or x.ndim < 1 or x.shape[-1] != bias.size:
            raise ValueError(f"bias_gelu: bias {bias.shape} wants the last dimension of x "
                             f"{x.shape}")
        self.approximate = approximate
        x, bias = contiguous(self.xp, x), contiguous(self.xp, bias)
        out = self.xp.empty_like(x)
        with_bias(out, x, bias, approximate)
        self.save(x, bias)
        return out

    def backward(self, gy):
        x, bias = self.saved
        gx = self.xp.empty_like(x)
        gbias = with_bias_backward(gx, contiguous(self.xp, gy), x, bias, self.approximate)
        return gx, gbias


def gelu(input, approximate="none"):
    """x P(x), elementwise; approximate: 'none' or 'tanh'."""
    return Gelu.apply(input, approximate=approximate)


def bias_gelu(input, bias, approximate="none"):
    """gelu(input + bias); input (..., cols), bias (cols,)."""
    return BiasGelu.apply(input, bias, approximate=approximate)
