"""Grades work/02_add3.py and work/add3.cu.   Test: tests/tutorials/test_exercises.py"""

from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.exercise_grade import Wrong

SIZES = (1, 255, 256, 257, 1_000_000)
WATCHED = 10_000  # above, every access of a check would take seconds: the result alone is compared


def grade_02a(student):
    """add3_relu_bias is right for any n and block, and loads and stores each element once."""
    file = Path(student.__file__).with_name("add3.cu")
    generator = minidl.Generator(21)
    for n in SIZES:
        for block in (256, 96) if n < WATCHED else (256,):
            cols = 13 if n > 13 else 1
            a, b, c = (generator.normal(n) for _ in range(3))
            bias = generator.normal(cols)
            out = np.full(n, np.nan, np.float32)
            arguments = (out, a, b, c, bias, n, cols)
            grid = -(-n // block)
            if n < WATCHED:
                _watched(file, grid, block, arguments)
            else:
                cuda.kernel(file, "add3_relu_bias")(grid, block, arguments)
            _right(arguments, block)
        yield f"n = {n:,}: every element" + (", every access" if n < WATCHED else "")
    _half(file)
    yield "T = double: the same code for another element type"


def _watched(file, grid, block, arguments):
    report = cuda.check(file, grid, block, arguments, name="add3_relu_bias", outputs=["out"])
    n = arguments[0].size
    if report.errors:
        raise Wrong(
            f"n = {n:,}, blocks of {block} threads:\n"
            + "\n".join(f"{f}\n    {f.remedy}" for f in report.errors)
        )
    for name in ("a", "b", "c", "bias"):
        if report.ledger[name].loads != n:
            raise Wrong(
                f"n = {n:,}: {report.ledger[name].loads:,} loads from {name}; one for each element "
                f"is enough, {n:,}"
            )
    if report.ledger["out"].stores != n or report.ledger["out"].loads:
        t = report.ledger["out"]
        raise Wrong(
            f"n = {n:,}: {t.stores:,} stores to out and {t.loads:,} loads from it; the sum should "
            f"stay in a register and be stored once, {n:,} stores"
        )


def _right(arguments, block):
    out, a, b, c, bias, n, cols = arguments
    total = a.astype(float) + b + c + bias[np.arange(n) % cols]
    wanted = np.maximum(total, 0)
    # three additions and a rounding to float32 of numbers below 32: 4 * 32 * 2^-24
    wrong = np.flatnonzero(~(np.abs(out - wanted) < 8e-6))
    if not len(wrong):
        return
    i = int(wrong[0])
    hint = ""
    if np.allclose(out, total, atol=1e-5):
        hint = " Negative sums must become 0."
    elif np.allclose(out, np.maximum(a.astype(float) + b + c, 0), atol=1e-5):
        hint = " Is the bias added?"
    elif np.allclose(
        out, np.maximum(a.astype(float) + b + c, 0) + bias[np.arange(n) % cols], atol=1e-5
    ):
        hint = " The bias comes before the max."
    raise Wrong(
        f"n = {n:,}, blocks of {block} threads: out[{i}] should be {wanted[i]:.6g}, is "
        f"{out[i]:.6g}; {len(wrong):,} elements are wrong." + hint
    )


def _half(file):
    x = np.array([1.0, 2.0, -9.0])
    out = np.empty(3)
    arguments = (out, x, x, x, np.array([1e-12]), 3, 1)
    cuda.kernel(file, "add3_relu_bias", defines={"T": "double"})(1, 32, arguments)
    if not np.allclose(out, [3 + 1e-12, 6 + 1e-12, 0], rtol=0, atol=1e-15):
        raise Wrong(
            f"T = double: got {out.tolist()}, wanted [3 + 1e-12, 6 + 1e-12, 0]. Does a `float` "
            "variable lose digits? `auto` takes the type that to_float() returns"
        )


def grade_02b(student):
    """blocks(n, block) is the smallest number of blocks whose threads cover n elements."""
    for block in (256, 96, 1):
        for n in (*SIZES, 96, 97):
            got = student.blocks(n, block)
            if isinstance(got, (float, np.floating)) or got != int(got):
                raise Wrong(
                    f"blocks({n:,}, {block}) is {got!r}, a float; a grid is a whole number: use //"
                )
            if got * block < n:
                raise Wrong(
                    f"blocks({n:,}, {block}) is {got:,}: {got * block:,} threads, so element "
                    f"{got * block:,} has none. Round up"
                )
            if (got - 1) * block >= n:
                raise Wrong(
                    f"blocks({n:,}, {block}) is {got:,}: the last block has no element; "
                    f"{-(-n // block):,} are enough"
                )
        yield f"blocks of {block}: n = {', '.join(f'{n:,}' for n in SIZES)} and others"


# {exercise: {name of the mistake: (what stands in the region, words of the message that it must
# get)}}
WRONG = {
    "02a": {
        "no guard": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x;
auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
out[i] = from_float<T>(sum > 0 ? sum : 0);
""",
            "out of bounds",
        ),
        "guard with <=": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i <= n) {
  auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
""",
            "a[1], but a has 1 element",
        ),
        "block size written in": (
            """
int i = blockIdx.x * 256 + threadIdx.x;
if (i < n) {
  auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
""",
            "159 elements of out never written, the first is out[96]",
        ),
        "bias of the row": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i / cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
""",
            "but bias has 13 elements",
        ),
        "bias after the max": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]);
  out[i] = from_float<T>((sum > 0 ? sum : 0) + to_float(bias[i % cols]));
}
""",
            "should be",
        ),
        "no max": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i >= n) return;
auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
out[i] = from_float<T>(sum);
""",
            "should be",
        ),
        "a loop in every thread": (
            """
for (int i = threadIdx.x; i < n; i += blockDim.x) {
  auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
""",
            "loads from a; one for each element is enough",
        ),
        "a float in between": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  float sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
""",
            "T = double",
        ),
        "a semicolon is missing": (
            """
int i = blockIdx.x * blockDim.x + threadIdx.x
if (i < n) out[i] = a[i];
""",
            "add3.cu",
        ),
    },
    "02b": {
        "rounds down": ("return n // block", "has none. Round up"),
        "always one more": ("return n // block + 1", "the last block has no element"),
        "a float": ("return n / block", "a grid is a whole number"),
        "a block for every element": ("return n", "the last block has no element"),
    },
}
