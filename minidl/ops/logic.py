"""Comparisons, logic, whole division: bool and integer results, no gradient, hence no graph.

    (x > 0) & ~minidl.isnan(x)        operands broadcast and are promoted as in arithmetic

Test: tests/ops/test_logic.py
"""

from minidl.function import Function


class Plain(Function):
    """A function of NumPy (and CuPy) called `name`, without a gradient."""

    differentiable = False
    promotes = "same"

    def forward(self, *inputs, name):
        self.name = name
        return getattr(self.xp, name)(*inputs)


def eq(input, other):
    return Plain.apply(input, other, name="equal")


def ne(input, other):
    return Plain.apply(input, other, name="not_equal")


def lt(input, other):
    return Plain.apply(input, other, name="less")


def le(input, other):
    return Plain.apply(input, other, name="less_equal")


def gt(input, other):
    return Plain.apply(input, other, name="greater")


def ge(input, other):
    return Plain.apply(input, other, name="greater_equal")


def bitwise_and(input, other):
    """input & other: bit by bit for integers, `and` for bool; an error for floats."""
    return Plain.apply(input, other, name="bitwise_and")


def bitwise_or(input, other):
    return Plain.apply(input, other, name="bitwise_or")


def bitwise_xor(input, other):
    return Plain.apply(input, other, name="bitwise_xor")


def bitwise_not(input):
    return Plain.apply(input, name="invert")


def logical_and(input, other):
    """Both are not zero, for any dtype."""
    return Plain.apply(input, other, name="logical_and")


def logical_or(input, other):
    return Plain.apply(input, other, name="logical_or")


def logical_not(input):
    return Plain.apply(input, name="logical_not")


def floor_divide(input, other):
    """input // other, rounded down."""
    return Plain.apply(input, other, name="floor_divide")


def isnan(input):
    return Plain.apply(input, name="isnan")


def isinf(input):
    return Plain.apply(input, name="isinf")


def isfinite(input):
    return Plain.apply(input, name="isfinite")
