"""Floats: a computer's number has only a few digits, so sums depend on the order of additions.

A float16 is m * step, where m is an integer of at most 11 bits. The step depends on how large the
number is:

    numbers from     1024 to 2048     step 1           2048 to 4096    step 2
                        1 to 2        step 2^-10       the largest     65504
                        0 to 2^-13    step 2^-24. Half a step or less becomes 0

Every operation rounds to the nearest such number. Half way between two numbers, it rounds to the
one with even m. From 2^-14 to 65504 the relative error of one rounding is at most u = 2^-11
(float32: 2^-24, float64: 2^-53).

Swamping: a small number is lost in a large one. 2048 + 1 = 2048, because 2049 is half way between
2048 and 2050. So 1 + 1 + 1 + ... stops at 2048, and (a + b) + c is not a + (b + c). Three ways to
add n numbers follow. S is the sum of the absolute values of the n numbers:

    in order     x0 + x1 + x2 + ...              error at most (n - 1) u S
    pairwise     (x0 + x1) + (x2 + x3), a tree   error at most ceil(log2 n) u S
    Kahan        computes what each addition     error at most about 2 u S
                 lost, and adds it next time

A fourth way: the sum is kept in a wider type, and rounded once at the end. Float16 numbers are
summed in this way.

Papers: Kahan, "Further remarks on reducing truncation errors", 1965; Higham, "Accuracy and
Stability of Numerical Algorithms", 2002.
This page is the plain version. The real one, minidl/backend.py and minidl/ops/reduce.py, adds: a
wider type in every operation that computes a sum. For float16 and bfloat16 this type is float32.
NumPy's own sum is pairwise: it cuts a long array into blocks.
"""

import math

import numpy as np


def to_half(x):
    """Returns the float16 number that is nearest to x, a Python float."""
    exponent = math.frexp(x)[1] - 1  # 2^exponent <= |x| < 2^(exponent + 1)
    step = 2.0 ** (max(exponent, -14) - 10)
    nearest = round(x / step) * step  # if two integers are equally near, round takes the even one
    return nearest if abs(nearest) <= 65504 else math.copysign(math.inf, x)


def in_order(x):
    """Returns the sum of x. Adds one number after the other, and each sum is rounded to the type of
    x."""
    total = x[0]
    for number in x[1:]:
        total = total + number
    return total


def pairwise(x):
    if len(x) == 1:
        return x[0]
    middle = len(x) // 2
    return pairwise(x[:middle]) + pairwise(x[middle:])


def kahan(x):
    total = lost = x.dtype.type(0)
    for number in x:
        wanted = number + lost
        new = total + wanted
        lost = wanted - (new - total)  # the wanted growth of the sum, minus its real growth
        total = new
    return total


def wide(x):
    """Returns the sum of float16 numbers, added in float32 and rounded once."""
    return in_order(x.astype(np.float32)).astype(np.float16)


if __name__ == "__main__":
    print("to_half:", *[to_half(x) for x in (2049.0, 2051.0, 70000.0, 1e-8)])
    one, large = np.float16(1), np.float16(2048)
    print("(2048 + 1) + 1 is", int((large + one) + one))
    print("2048 + (1 + 1) is", int(large + (one + one)))
    ones = np.ones(4000, np.float16)
    for way in in_order, pairwise, kahan, wide:
        print(f"4000 ones, {way.__name__}: {int(way(ones))}")
