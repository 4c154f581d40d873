"""Grades work/21_float.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

import minidl
from minidl.exercise_grade import Wrong, solution


def grade_21a(student):
    """pairwise adds as a tree: any length, the same bits, and an error of log2(n) u."""
    for n in (1, 2, 3, 7, 8, 1000, 4097):
        x = minidl.Generator(n).uniform(n, low=0.5, high=1.5)
        got = student.pairwise(x.copy())
        _is_sum(got, x, n)
        tree = solution(__file__).pairwise(x)
        if got != tree:
            raise Wrong(f"n = {n}: the sum is {got!r}, as a tree of neighbours it is {tree!r}; are "
                        "the additions in this order, and in x's type?")
        yield f"{n} numbers: the bits of the tree"


def grade_21b(student):
    """kahan keeps what an addition loses: an error of two roundings, however many numbers."""
    for n in (1, 2, 1000, 20011):
        x = minidl.Generator(n).uniform(n, low=0.5, high=1.5)
        got = student.kahan(x)
        _is_sum(got, x, n)
        error = abs(float(got) - math.fsum(x.tolist())) / math.fsum(x.tolist())
        if error > 2.01 * 2.0**-24:
            raise Wrong(f"n = {n}: the relative error is {error * 2**24:.1f} u; Kahan's is at most "
                        "2 u. Is what was lost taken from the next number, with its sign?")
        yield f"{n} numbers: within 2 u of the exact sum"
    x = np.array([1.0, *[2.0**-12] * 4096], np.float16)
    if float(student.kahan(x)) != 2.0:
        raise Wrong(f"1 and 4096 times 2^-12 in fp16 should give 2, got {student.kahan(x)}: each "
                    "alone is below half an ulp of the total")
    yield "fp16: 1 and 4096 times 2^-12 give 2"


def _is_sum(got, x, n):
    if np.asarray(got).dtype != x.dtype or np.ndim(got):
        raise Wrong(f"n = {n}: want one number of type {x.dtype}, got {got!r} of type "
                    f"{np.asarray(got).dtype}: stay in x's type")
    exact = math.fsum(x.tolist())
    if abs(float(got) - exact) > 1e-3 * exact:
        raise Wrong(f"n = {n}: the sum should be about {exact:.6g}, got {float(got):.6g}. Is every "
                    "number in it, once?")


# {exercise: {name of the mistake: (what stands in the region, words of the message that it must
# get)}}
WRONG = {
    "21a": {
        "one after the other": (
            """
return np.add.accumulate(x)[-1]
""",
            "as a tree of neighbours",
        ),
        "loses the last of an odd number": (
            """
while len(x) > 1:
    x = x[0 : len(x) // 2 * 2 : 2] + x[1::2]
return x[0]
""",
            "every number in it",
        ),
        "in double precision": (
            """
return np.float32(math.fsum(x.tolist()))
""",
            "as a tree of neighbours",
        ),
        "returns a double": (
            """
return x.astype(np.float64).sum()
""",
            "stay in x's type",
        ),
        "only two halves": (
            """
half = len(x) // 2
return in_order(x[:half]) + in_order(x[half:]) if half else x[0]
""",
            "as a tree of neighbours",
        ),
    },
    "21b": {
        "without the remainder": (
            """
for number in x:
    total = total + number
""",
            "the relative error is",
        ),
        "with the wrong sign": (
            {"number - lost": "number + lost"},
            "the relative error is",
        ),
        "after the total has changed": (
            """
for number in x:
    y = number - lost
    total = total + y
    lost = (total - total) - y
""",
            "every number in it",
        ),
        "the remainder of the number, not of y": (
            """
for number in x:
    new = total + (number - lost)
    lost = (new - total) - number
    total = new
""",
            "the relative error is",
        ),
        "in double precision": (
            """
total = np.float64(0)
for number in x:
    total += float(number)
""",
            "stay in x's type",
        ),
    },
}
