"""ReLU with the bias before it: out = max(x + bias, 0), forward and backward in one pass each.

Saved: out alone, which the next layer keeps anyway; x + bias never reaches memory. The bias
gradient is summed on the way, in partial rows that the array library adds up.

Kernel: kernels/bias_relu.cu   Test: tests/fused/test_bias_relu.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.fused import dispatch
from minidl.fused.launch import BLOCK, contiguous, rows_per_partial


def reference(x, bias):
    return np.maximum(x + bias, 0)


def launch(name, dtype, grid, block, args):
    acc = dispatch.C_TYPES[backend.accumulate_dtype(dtype)]
    dispatch.kernel("bias_relu.cu", name, dtype, ACC=acc)(grid, block, args)


class BiasRelu(Function):
    """max(x + bias, 0), slope 0 at 0. Saves the result."""

    promotes = "same"

    def forward(self, x, bias):
        if bias.ndim != 1 or x.ndim < 1 or x.shape[-1] != bias.size:
            raise ValueError(
                f"bias_relu: bias {bias.shape} wants the last dimension of x {x.shape}"
            )
        x, bias = contiguous(self.xp, x), contiguous(self.xp, bias)
        out, cols = self.xp.empty_like(x), bias.size
        rows = x.size // max(cols, 1)
        args = out, x, bias, rows, cols
        if x.size and self.xp is np:
            launch("bias_relu_rows", x.dtype, -(-rows // 8), 8, args)
        elif x.size:
            launch("bias_relu", x.dtype, (-(-cols // BLOCK), min(rows, 65535)), BLOCK, args)
        self.save(out)
        return out

    def backward(self, gy):
        (out,) = self.saved
        xp, cols, acc = self.xp, out.shape[-1], backend.accumulate_dtype(out.dtype)
        gx = xp.empty_like(out)
        if not out.size:
            return gx, xp.zeros(cols, acc)
        rows = out.size // cols
        per_chunk = rows_per_partial(xp, rows)
        n_chunks = -(-rows // per_chunk)
        partial = xp.empty((n_chunks, cols), acc)
        args = gx, partial, contiguous(xp, gy), out, rows, cols, per_chunk
        if xp is np:
            launch("bias_relu_backward_rows", out.dtype, n_chunks, 1, args)
        else:
            launch("bias_relu_backward", out.dtype, (-(-cols // BLOCK), n_chunks), BLOCK, args)
        return gx, partial.sum(axis=0)


def bias_relu(input, bias):
    """max(input + bias, 0); input (..., cols), bias (cols,)."""
    return BiasRelu.apply(input, bias)
