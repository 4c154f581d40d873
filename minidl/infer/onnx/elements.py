"""ONNX's elementwise operators, and its activations.

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import functools
import math

import numpy as np

from minidl.infer.onnx.operator import (
    Known, Raw, Refused, dtype_of, from_arrays, m, number_of, operators,
)
from minidl.nn import functional as F

SAME = {  # {operator of ONNX: the op of minidl that computes the same}
    "Abs": m.abs, "Acos": m.acos, "Add": m.add, "And": m.logical_and, "Asin": m.asin,
    "Atan": m.atan, "BitwiseAnd": m.bitwise_and, "BitwiseNot": m.bitwise_not,
    "BitwiseOr": m.bitwise_or, "BitwiseXor": m.bitwise_xor, "Ceil": m.ceil, "Cos": m.cos,
    "Cosh": m.cosh, "Equal": m.eq, "Erf": m.erf, "Exp": m.exp, "Floor": m.floor, "Greater": m.gt,
    "GreaterOrEqual": m.ge, "IsNaN": m.isnan, "Less": m.lt, "LessOrEqual": m.le, "Log": m.log,
    "Mish": F.mish, "Mul": m.mul, "Neg": m.neg, "Not": m.logical_not, "Or": m.logical_or,
    "Reciprocal": m.reciprocal, "Relu": m.relu, "Round": m.round, "Sigmoid": m.sigmoid,
    "Sign": m.sign, "Sin": m.sin, "Sinh": m.sinh, "Softplus": F.softplus, "Sqrt": m.sqrt,
    "Sub": m.sub, "Tan": m.tan, "Tanh": m.tanh, "Where": m.where, "Xor": m.ne}
FORMULAS = {
    "Acosh": lambda x: (x + (x * x - 1.0).sqrt()).log(),
    "Celu": lambda x, *, alpha=1.0: F.elu(x / alpha, 1.0) * alpha,
    "Clip": lambda x, min=None, max=None: x if min is max is None else m.clamp(x, min, max),
    "Div": lambda a, b: m.div(a, b, rounding_mode="trunc" if a.dtype.kind in "iu" else None),
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: m.clamp(x * alpha + beta, 0.0, 1.0),
    "HardSwish": lambda x: x * m.clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
    "Identity": lambda x: x,
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "Max": lambda *xs: functools.reduce(m.maximum, xs),
    "Mean": lambda *xs: functools.reduce(m.add, xs) / len(xs),
    "Min": lambda *xs: functools.reduce(m.minimum, xs),
    "Mod": lambda a, b, *, fmod=0: _fmod(a, b) if fmod else m.remainder(a, b),
    "PRelu": lambda x, slope: m.where(x < 0, x * slope, x),
    "Selu": lambda x, *, alpha=1.67326324, gamma=1.05070098: F.elu(x, alpha) * gamma,
    "Softsign": lambda x: x / (m.abs(x) + 1),
    "Sum": lambda *xs: functools.reduce(m.add, xs),
    "SwiGLU": lambda a, b, *, alpha=1.0: a * m.sigmoid(a * alpha) * b,
    "Swish": lambda x, *, alpha=1.0: F.silu(x) if alpha == 1 else x * m.sigmoid(x * alpha),
    "ThresholdedRelu": lambda x, *, alpha=1.0: m.where(x > alpha, x, 0.0),
    "Softmax": lambda x, *, axis=None, _opset=13: _rows(F.softmax, x, axis, _opset),
    "LogSoftmax": lambda x, *, axis=None, _opset=13: _rows(F.log_softmax, x, axis, _opset)}
ON_ARRAYS = {name: from_arrays(f, name) for name, f in {  # operators for which minidl has no op
    "Asinh": lambda x: np.arcsinh(x),
    "Atanh": lambda x: np.arctanh(x),
    "BitShift": lambda x, y, *, direction: (
        np.left_shift if direction == "LEFT" else np.right_shift)(x, y),
    "Cast": lambda x, *, to, saturate=1, round_mode="up": x.astype(dtype_of(to)),
    "CastLike": lambda x, y, *, saturate=1, round_mode="up": x.astype(y.dtype),
    "IsInf": lambda x, *, detect_negative=1, detect_positive=1: (
        np.isposinf(x) & bool(detect_positive)) | (np.isneginf(x) & bool(detect_negative)),
    "Shrink": lambda x, *, bias=0.0, lambd=0.5: np.where(
        x > lambd, x - bias, np.where(x < -lambd, x + bias, 0)).astype(x.dtype)}.items()}


def Dropout(x, ratio=None, training_mode: Known = None, *, seed=0, _n=1):
    if training_mode is not None and training_mode.any():
        raise Refused("training_mode is not supported: a graph is for inference")
    return (x, m.ones(*x.shape, dtype=bool)) if _n > 1 else x


def Pow(x, y: Raw):
    """Computes x ** y in the dtype of x. If y is a single constant number, y is turned into a
    Python number. Then a kernel can compute x ** 2 as x * x."""
    if isinstance(y, np.ndarray) and y.size == 1 and y.ndim <= x.ndim and x.dtype.kind == "f":
        return x ** y.item()
    return _pow(x, y) if x.dtype != y.dtype else m.pow(x, y)


@from_arrays
def _pow(x, y):
    return (x ** y).astype(x.dtype)


@from_arrays
def _fmod(a, b):
    return np.fmod(a, b)


@from_arrays
def BitCast(x, *, to):
    if dtype_of(to).itemsize != x.dtype.itemsize:
        raise Refused(f"want a dtype of the same size as {x.dtype}; got {dtype_of(to)}")
    return x.view(dtype_of(to))


def cast(x, dtype):
    """Returns x in this dtype. If x has the dtype already, returns x itself."""
    return x if x.dtype == dtype else ON_ARRAYS["Cast"](x, to=number_of(dtype))


def _rows(f, x, axis, opset):
    """Applies f, a softmax function, along an axis. Before version 13 of ONNX's operators, a
    softmax goes over all dimensions from this axis on. opset: the version of the operators in the
    file."""
    if opset >= 13:
        return f(x, -1 if axis is None else axis)
    axis = (1 if axis is None else axis) % max(x.ndim, 1)
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return f(flat, -1).reshape(x.shape)


TABLE = {**SAME, **FORMULAS, **ON_ARRAYS, **operators(globals())}
