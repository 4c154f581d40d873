"""Elementary functions of one number, each with its derivative.

FORMULAS has two functions for each name: one computes y = f(x), the other dy/dx from x and y.

    erf(x) = 2 / sqrt(pi) * integral of e^(-t^2) for t from 0 to x

Integers become float32, as in PyTorch.
Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

import math

import numpy as np

from minidl.function import Function
from minidl.ops.elementwise import unary
from minidl.ops.normal import erf_by


class Unary(Function):
    """y = f(x), where f is FORMULAS[name]. Saves x and y."""
    promotes = "float"

    def forward(self, x, name):
        self.name = name
        y = self.xp.asarray(FORMULAS[name][0](self.xp, x))
        self.save(x, y)
        return y.astype(x.dtype, copy=False)

    def backward(self, gy):
        return gy * FORMULAS[self.name][1](self.xp, *self.saved)


# {name: (the function, its derivative)}. At a pole the function and its derivative give inf or nan,
# as in PyTorch.
FORMULAS = {
    "erf": (erf_by, lambda xp, x, y: 2 / math.sqrt(math.pi) * xp.exp(-x * x)),
    "expm1": (lambda xp, x: xp.expm1(x), lambda xp, x, y: y + 1),
    "exp2": (lambda xp, x: xp.exp2(x), lambda xp, x, y: y * math.log(2)),
    "log1p": (lambda xp, x: xp.log1p(x), lambda xp, x, y: 1 / (x + 1)),
    "log2": (lambda xp, x: xp.log2(x), lambda xp, x, y: 1 / (x * math.log(2))),
    "log10": (lambda xp, x: xp.log10(x), lambda xp, x, y: 1 / (x * math.log(10))),
    "tan": (lambda xp, x: xp.tan(x), lambda xp, x, y: 1 + y * y),
    "asin": (lambda xp, x: xp.arcsin(x), lambda xp, x, y: 1 / xp.sqrt(1 - x * x)),
    "acos": (lambda xp, x: xp.arccos(x), lambda xp, x, y: -1 / xp.sqrt(1 - x * x)),
    "atan": (lambda xp, x: xp.arctan(x), lambda xp, x, y: 1 / (1 + x * x)),
    "sinh": (lambda xp, x: xp.sinh(x), lambda xp, x, y: xp.cosh(x)),
    "cosh": (lambda xp, x: xp.cosh(x), lambda xp, x, y: xp.sinh(x)),
    "reciprocal": (lambda xp, x: 1 / x, lambda xp, x, y: -y * y),
}


class Square(Function):
    """x * x, in the dtype of x. A bool gives int64."""

    def forward(self, x):
        self.save(x)
        return x * x if x.dtype != np.bool_ else x.astype(np.int64)

    def backward(self, gy):
        (x,) = self.saved
        return 2 * gy * x


erf = unary("erf", Unary, "The error function.", name="erf")
expm1 = unary("expm1", Unary, "e^x - 1, exact near 0.", name="expm1")
exp2 = unary("exp2", Unary, "2^x.", name="exp2")
log1p = unary("log1p", Unary, "log(1 + x), exact near 0.", name="log1p")
log2 = unary("log2", Unary, "The logarithm to base 2.", name="log2")
log10 = unary("log10", Unary, "The logarithm to base 10.", name="log10")
tan = unary("tan", Unary, "The tangent of x in radians.", name="tan")
asin = unary("asin", Unary, "The arc sine, between -pi/2 and pi/2.", name="asin")
acos = unary("acos", Unary, "The arc cosine, between 0 and pi.", name="acos")
atan = unary("atan", Unary, "The arc tangent, between -pi/2 and pi/2.", name="atan")
sinh = unary("sinh", Unary, "(e^x - e^-x) / 2.", name="sinh")
cosh = unary("cosh", Unary, "(e^x + e^-x) / 2.", name="cosh")
reciprocal = unary("reciprocal", Unary, "1 / x.", name="reciprocal")
square = unary("square", Square)
