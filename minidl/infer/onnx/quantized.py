"""ONNX's operators on integers: operands of 8 bits, sums of 32 bits.

    q = saturate(round(x / scale) + zero)     round: to the nearest integer, ties to even
    x = (q - zero) * scale                    saturate: clip to the range of the dtype

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import numpy as np

from minidl.infer.onnx.layers import Conv
from minidl.infer.onnx.operator import Refused, dtype_of, from_arrays, operators
from minidl.tensor import Tensor


def _along(v, x, axis):
    """Returns v, the scales or zero points, in a shape that broadcasts to x. v has one number for
    all of x, for each index along the axis, or for each block along the axis. If v is None, returns
    0."""
    if v is None or v.size == 1 and v.ndim <= 1:
        return 0 if v is None else v.reshape(())
    if v.ndim == x.ndim:  # v has a number for each block
        return np.repeat(v, x.shape[axis] // v.shape[axis], axis)
    return v.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])


def _saturated(x, dtype):
    """Returns x in an integer dtype. Numbers outside the range of the dtype become the smallest or
    the largest number of the dtype."""
    limits = np.iinfo(dtype)
    return np.clip(x, limits.min, limits.max).astype(dtype)


@from_arrays
def QuantizeLinear(x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0, precision=0,
                   saturate=1):
    dtype = zero.dtype if zero is not None else dtype_of(output_dtype) if output_dtype else (
        np.dtype(np.uint8))
    shift = _along(zero, x, axis)
    shift = shift.astype(np.int64) if zero is not None else 0
    return _saturated(np.rint(x / _along(scale, x, axis)).astype(np.float64) + shift, dtype)


@from_arrays
def DequantizeLinear(x, scale, zero=None, *, axis=1, block_size=0, output_dtype=0):
    shift = _along(zero, x, axis)
    shift = shift.astype(np.int64) if zero is not None else 0
    y = (x.astype(np.int64) - shift).astype(scale.dtype) * _along(scale, x, axis)
    return y.astype(dtype_of(output_dtype)) if output_dtype else y


@from_arrays
def DynamicQuantizeLinear(x):
    least, most = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((most - least) / np.float32(255))
    zero = _saturated(np.rint((0 - least) / scale), np.uint8) if scale else np.uint8(0)
    y = _saturated(np.rint(x / scale) + zero if scale else x * 0, np.uint8)
    return y, np.asarray(scale), np.asarray(zero)


def _of_rows(v):
    """Returns a vector (n,) as a column (n, 1). The vector has one number for each row. Returns
    other values unchanged."""
    return v[:, None] if v is not None and v.ndim == 1 and v.size > 1 else v


def _wide(x, zero, by_row):
    """Returns x - zero in int32. If `zero` is a vector, it has one zero point for each row (by_row
    is True) or for each column (by_row is False)."""
    zero = _of_rows(zero) if by_row else zero
    return x.astype(np.int32) - (0 if zero is None else zero.astype(np.int32))


@from_arrays
def MatMulInteger(a, b, a_zero=None, b_zero=None):
    return _wide(a, a_zero, True) @ _wide(b, b_zero, False)


@from_arrays
def QLinearMatMul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    """Multiplies a by b. Scales and zero points are single numbers or vectors. For a and y, a
    vector has one number for each row. For b, a vector has one number for each column."""
    total = _wide(a, a_zero, True) @ _wide(b, b_zero, False)
    factor = _of_rows(a_scale) * b_scale / _of_rows(y_scale)
    return _requantized(total, np.asarray(factor), _of_rows(y_zero))


def _requantized(total, factor, zero):
    """Turns int32 sums into 8-bit numbers: multiplies by `factor`, rounds, and adds the zero
    point."""
    return _saturated(np.rint(total * factor.astype(np.float32)).astype(np.float64) + zero,
                      zero.dtype)


@from_arrays
def ConvInteger(x, w, x_zero=None, w_zero=None, *, auto_pad="NOTSET", dilations=None, group=1,
                kernel_shape=None, pads=None, strides=None):
    return _conv(x, w, x_zero, w_zero, auto_pad, dilations, group, pads, strides)


@from_arrays
def QLinearConv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b=None, *,
                auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None,
                strides=None):
    total = _conv(x, w, x_zero, w_zero, auto_pad, dilations, group, pads, strides)
    total = total + (0 if b is None else b.reshape(-1, *[1] * (x.ndim - 2)))
    factor = np.asarray(x_scale * w_scale / y_scale)
    factor = factor.reshape(-1, *[1] * (x.ndim - 2)) if factor.size > 1 else factor
    return _requantized(total, factor, y_zero)


def _conv(x, w, x_zero, w_zero, auto_pad, dilations, group, pads, strides):
    """Returns the int32 sums of a convolution. The sums are computed in float64, which is exact for
    integers of up to 53 bits."""
    if w_zero is not None and w_zero.size > 1:
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
    x, w = (Tensor(_wide(v, z, False).astype(np.float64)) for v, z in ((x, x_zero), (w, w_zero)))
    y = Conv(x, w, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    return y.array.astype(np.int32)


TABLE = {k: f for k, f in operators(globals()).items() if f is not Refused}
