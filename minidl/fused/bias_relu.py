"""ReLU with the bias before it: out = max(x + bias, 0), forward and backward in one pass each.

Saved: out alone, which the next layer keeps anyway; x + bias never reaches memory. The bias
gradient is summed on the way, in partial rows that the array library adds up. For models of your
own: nn.Linear adds its bias itself.

Kernel: kernels/bias_relu.cu   Test: tests/fused/test_bias_relu.py
"""

import numpy as np

from minidl.function import Function
from minidl.fused import dispatch
from minidl.fused.launch import contiguous, over_rows, over_rows_with_sums

FILE = "bias_relu.cu"


# ---- 1 reference ----


def reference(x, bias):
    return np.maximum(x + bias, 0)


# ---- 2 launch ----


def macros(dtype):
    """The type to sum in."""
    return dict(ACC=dispatch.sum_type(dtype))


# ---- 3 Function ----


class BiasRelu(Function):
    """max(x + bias, 0), slope 0 at 0. Saves the result."""

    promotes = "same"

    def forward(self, x, bias):
        if bias.ndim != 1 or x.ndim < 1 or x.shape[-1] != bias.size:
            raise ValueError(f"bias_relu: bias {bias.shape} wants the last dimension of x "
                             f"{x.shape}")
        x, bias = contiguous(self.xp, x), contiguous(self.xp, bias)
        out, cols = self.xp.empty_like(x), bias.size
        shape = x.size // max(cols, 1), cols
        over_rows(FILE, "bias_relu", x.dtype, self.xp, *shape, (out, x, bias), **macros(x.dtype))
        self.save(out)
        return out

    def backward(self, gy):
        (out,) = self.saved
        gx, gy, cols = self.xp.empty_like(out), contiguous(self.xp, gy), out.shape[-1]
        shape, name = (out.size // max(cols, 1), cols), "bias_relu_backward"
        options = macros(out.dtype)
        return gx, over_rows_with_sums(FILE, name, self.xp, *shape, gx, (gy, out), **options)


def bias_relu(input, bias):
    """max(input + bias, 0); input (..., cols), bias (cols,)."""
    return BiasRelu.apply(input, bias)
