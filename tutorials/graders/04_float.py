"""Grades work/04_float.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

import minidl
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student


def numbers(n, stream=0):
    return minidl.Generator(SEED + n, stream).uniform(n, low=0.5, high=1.5)


def pairwise(module, n, streams):
    """Returns [(the student's sum of n numbers, True if the array was not changed)] for each
    array."""
    arrays = [numbers(n, stream) for stream in range(streams)]
    sums = [module.pairwise(x) for x in arrays]
    return [(got, bool((x == numbers(n, stream)).all()))
            for stream, (got, x) in enumerate(zip(sums, arrays, strict=True))]


def kahan(module, n):
    return module.kahan(numbers(n))


def kahan_in_half(module, n, streams):
    """Returns the sums of `streams` arrays of n numbers in fp16. If n is 0, there is one array: a
    1, then 4096 times the number 2^-12."""
    return [module.kahan(x) for x in halves(n, streams)]


def halves(n, streams):
    if not n:
        return [np.array([1.0, *[2.0**-12] * 4096], np.float16)]
    return [minidl.Generator(SEED + n, stream).uniform(n, low=0.5, high=1.5).astype(np.float16)
            for stream in range(streams)]


def grade_04a(student):
    """pairwise adds as a tree, for any length, with exactly the tree's bits."""
    for n in (1, 2, 8, 64, 3, 7, 1000, 4097):
        streams = 20 if n < 100 else 3
        arrays = [numbers(n, stream) for stream in range(streams)]
        trees, results = [_tree(x) for x in arrays], student.run(pairwise, n, streams)
        for (got, whole), x, tree in zip(results, arrays, trees, strict=True):
            _is_sum(got, x, n, "Is every number in it, once?")
            if got != tree:
                raise Wrong(f"{n} numbers: the sum is {got!r}, but as a tree of neighbours it is "
                            f"{tree!r}. {_cause(n, arrays, [got for got, _ in results])}")
            if not whole:
                raise Wrong(f"n = {n}: the sum is right, but x has changed: your code overwrote "
                            "the caller's numbers. Make a new array in each round")
        yield f"{n} numbers: the bits of the tree"


def _cause(n, arrays, sums):
    """Returns a hint: why the sums of n numbers differ from the tree's sums."""
    if all(got == x.dtype.type(_tree(x.astype(np.float64)))
           for got, x in zip(sums, arrays, strict=True)):
        return "A sum in float64, rounded at the end, gives these numbers: add in x's type"
    if n & (n - 1):
        return ("With 2, 8 and 64 numbers it was right. If their number is odd, the last one goes "
                "to the next round unchanged")
    return "Are neighbours added, x[0] + x[1], x[2] + x[3] ..., round after round?"


def _tree(x):
    """Returns the sum of x. Adds neighbours, from the leaves of a tree to its root."""
    x = list(x)
    while len(x) > 1:
        x = [sum(x[i + 1 : i + 2], x[i]) for i in range(0, len(x), 2)]
    return x[0]


def grade_04b(student):
    """kahan keeps the loss of each addition. The error is at most two roundings, for any n."""
    for n in (1, 2, 1000, 20011):
        got, x = student.run(kahan, n), numbers(n)
        _is_sum(got, x, n, "Is every number in it, once, and is `lost` computed from the "
                "total before and the total after?")
        exact = math.fsum(x.tolist())
        error = abs(float(got) - exact) / exact
        if error > 2.01 * 2.0**-24:
            raise Wrong(f"n = {n}: the relative error is {error * 2**24:.1f} u; the error of "
                        "Kahan's sum is at most 2 u. Do you subtract the loss, with its sign, "
                        "from the next number? Do you compute it from y, the number minus the loss "
                        "before?")
        yield f"{n} numbers: within 2 u of the exact sum"
    (got,) = student.run(kahan_in_half, 0, 1)
    if float(got) != 2.0:
        raise Wrong(f"1 plus 4096 times 2^-12 in fp16 should give 2, got {got}. Each small "
                    "number is less than half an ulp of the total, so a plain sum loses it")
    yield "fp16: 1 and 4096 times 2^-12 give 2"
    exact = [np.float16(math.fsum(x.tolist())) for x in halves(8, 100)]
    rounded = [k for k, x in enumerate(halves(8, 100)) if _kahan(x) != exact[k]]
    got = student.run(kahan_in_half, 8, 100)
    if all(got[k] == exact[k] for k in rounded):
        raise Wrong("100 sums of 8 numbers in fp16: if Kahan's sum is computed in fp16, "
                    f"{len(rounded)} of them have a wrong last digit. Your sum is exact each time. "
                    "Is it computed in float64? All of it must be in x's type")
    yield "100 sums in fp16: added in fp16"


def _kahan(x):
    total = lost = x.dtype.type(0)
    for number in x:
        y = number - lost
        total, before = total + y, total
        lost = (total - before) - y
    return total


def _is_sum(got, x, n, hint):
    if np.asarray(got).dtype != x.dtype or np.ndim(got):
        raise Wrong(f"n = {n}: want one number of type {x.dtype}, got {got!r} of type "
                    f"{np.asarray(got).dtype}; stay in x's type")
    exact = math.fsum(x.tolist())
    if not abs(float(got) - exact) <= 1e-3 * exact:
        raise Wrong(f"n = {n}: the sum should be about {exact:.6g}, got {float(got):.6g}. {hint}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "04a": {
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
    "04b": {
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
