"""Lengths of vectors, and the angle between two vectors.

    |x|_p = (sum of |x_i|^p)^(1/p)
    p = inf: the largest |x_i|          p = -inf: the smallest |x_i|
    p = 0: the number of elements that are not zero

Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

import math

import numpy as np

from minidl import backend
from minidl.ops.elementwise import div, sub
from minidl.ops.reduce import Reduction, sum
from minidl.ops.select import clamp


class Norm(Reduction):
    """y = the p-norm of x over `dim`. The slope dy/dx is x |x|^(p-2) / y^(p-1), and 0 where y is
    0."""
    precision = "black"

    def forward(self, x, p, dim=None, keepdim=False, dtype=None):
        xp, self.p = self.xp, p
        dtype = np.dtype(dtype or x.dtype)
        if not backend.is_floating(dtype):
            raise TypeError(f"norm: wants a floating dtype, got {dtype}; use x.float().norm()")
        axes, n = self.over(x, dim, keepdim)
        work = xp.abs(x.astype(backend.accumulate_dtype(dtype), copy=False))
        if math.isinf(p):
            y = (work.max if p > 0 else work.min)(axis=axes, keepdims=True)
        elif p == 0:
            y = (work != 0).sum(axis=axes, keepdims=True)
        else:
            powers = work * work if p == 2 else work if p == 1 else work**p
            y = powers.sum(axis=axes, keepdims=True)
            y = y if p == 1 else xp.sqrt(y) if p == 2 else y ** (1 / p)
        self.axes = axes
        y = y.astype(dtype, copy=False)
        self.save(x, y)
        return y.reshape(self.result)

    def backward(self, gy):
        x, y = self.saved
        xp, p, gy = self.xp, self.p, gy.reshape(self.kept)
        if p == 0:
            return xp.zeros(self.shape, gy.dtype)
        if p == 1:
            return xp.sign(x) * gy
        if math.isinf(p):  # all largest (or smallest) elements share the gradient
            best = xp.abs(x) == y
            return xp.sign(x) * best * (gy / xp.maximum(best.sum(axis=self.axes, keepdims=True), 1))
        zero = y == 0
        if p == 2:
            return x * xp.where(zero, 0, gy / xp.where(zero, 1, y))
        size = xp.abs(x)
        slope = xp.where(size == 0, 0, xp.where(size == 0, 1, size) ** (p - 1))
        return xp.sign(x) * slope * xp.where(zero, 0, gy / xp.where(zero, 1, y) ** (p - 1))


def norm(input, p="fro", dim=None, keepdim=False, *, dtype=None):
    """The p-norm of the whole tensor, or of the vectors along `dim`. p: a number, inf, -inf, or
    "fro", which is 2."""
    if p == "nuc":
        raise NotImplementedError("norm: p='nuc' is not provided; use numpy.linalg.norm on the "
                                  "array")
    p = 2 if p is None or p == "fro" else float(p)
    return Norm.apply(input, p=p, dim=dim, keepdim=keepdim, dtype=dtype)


def normalize(input, p=2.0, dim=1, eps=1e-12):
    """Divides the vectors along `dim` by their length: input / max(|input|_p, eps)."""
    return div(input, clamp(norm(input, p, dim, keepdim=True), min=eps))


def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """The cosine of the angle between vectors along `dim`: x1 . x2 / (|x1| |x2|). Lengths below eps
    count as eps. x1 and x2 broadcast."""
    shape = np.broadcast_shapes(x1.shape, x2.shape)
    x1, x2 = (x if x.shape == shape else x.expand(shape) for x in (x1, x2))
    a, b = (div(x, clamp(norm(x, 2, dim, keepdim=True), min=eps)) for x in (x1, x2))
    return sum(a * b, dim)


def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """|x1 - x2 + eps|_p along the last dimension."""
    return norm(sub(x1, x2) + float(eps), p, -1, keepdim)
