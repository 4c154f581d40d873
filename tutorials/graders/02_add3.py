"""Grades work/02_add3.py and work/add3.cu.   Test: tests/tutorials/test_exercises.py"""

import re
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.course.grade import Wrong, apart

SEED = 0  # `minidl check --student NAME` sets another one for each student

SIZES = (1, 255, 256, 257, 1_000_000)
# (rows, columns): an array of 1, 255, 256, 258 and 1,000,000 elements
ARRAYS = ((1, 1), (51, 5), (32, 8), (6, 43), (1000, 1000))
WATCHED = 10_000  # elements. Of a larger array only the result is compared, because a check is slow


def personal(draw):
    """Returns the sizes, with one more case that differs for each student."""
    rows, cols = map(int, draw.integers(2, 60, 2))
    return {"ARRAYS": (*ARRAYS, (rows, cols))}


def inputs(rows, cols):
    """Returns a, b, c of rows * cols elements, and a bias of cols elements."""
    generator = minidl.Generator(SEED + 21, stream=rows)
    return [generator.normal(n) for n in (rows * cols,) * 3 + (cols,)]


def launched(module, rows, cols, block):
    """Launches without the check form. Returns the array `out`."""
    file, arrays, n = _file(module), inputs(rows, cols), rows * cols
    out = np.full(n, np.nan, np.float32)
    cuda.kernel(file, "add3_relu_bias")(-(-n // block), block, (out, *arrays, n, cols))
    return out


def watched(module, rows, cols, block):
    """Launches in the check form. Returns (out, errors as text, {array: (loads, stores)})."""
    file, arrays, n = _file(module), inputs(rows, cols), rows * cols
    out = np.full(n, np.nan, np.float32)
    report = cuda.check(file, -(-n // block), block, (out, *arrays, n, cols), name="add3_relu_bias",
                        outputs=["out"])
    return out, [f"{f}\n    {f.remedy}" for f in report.errors], {
        name: (traffic.loads, traffic.stores) for name, traffic in report.ledger.items()}


def too_short(module):
    """Launches with n = 2 on arrays of one element. Returns the errors."""
    arrays = [np.ones(1, np.float32) for _ in range(5)]
    report = cuda.check(_file(module), 1, 32, (*arrays, 2, 1), name="add3_relu_bias")
    return [str(f) for f in report.errors]


def in_half(module):
    """Launches with T = __half on three small numbers. Returns the array `out`."""
    x = np.array([1.0, 2.0, -9.0], np.float16)
    out = np.empty(3, np.float16)
    kernel = cuda.kernel(_file(module), "add3_relu_bias", defines={"T": "__half"})
    kernel(1, 32, (out, x, x, x, np.array([0.5], np.float16), 3, 1))
    return out


def _file(module):
    return Path(module.__file__).with_name("add3.cu")


def grade_02a(student):
    """add3_relu_bias is right for any n and block, and loads and stores each element once."""
    for rows, cols in ARRAYS:
        n = rows * cols
        for block in (256, 96) if n < WATCHED else (256,):
            where = f"{rows} x {cols}, n = {n:,}, blocks of {block} threads"
            if n < WATCHED:
                out, errors, traffic = student.run(watched, rows, cols, block)
                if errors:
                    raise Wrong(f"{where}:\n" + "\n".join(errors))
                _right(out, rows, cols, where)
                _traffic(traffic, n)
            else:
                _right(student.run(launched, rows, cols, block), rows, cols, where)
        yield f"n = {n:,}: every element" + (", every access" if n < WATCHED else "")
    # Which thread computes element 1? The error names it.
    if any(re.search(r"thread 0 (reads|writes) \w+\[1\]", f) for f in student.run(too_short)):
        raise Wrong("n = 2: thread 0 computes element 1 too. Each thread must compute one element. "
                    "With a loop over all elements in one thread, the other threads have no work")
    yield "n = 2: each thread its own element"
    wanted = [3.5, 6.5, 0]
    if student.run(in_half).tolist() != wanted:
        raise Wrong(f"T = __half: wanted {wanted}. Do all inputs go through to_float(), and the "
                    "result through from_float<T>()?")
    yield "T = __half: the same code for another element type"


def _traffic(traffic, n):
    for name in ("a", "b", "c", "bias"):
        loads = traffic[name][0]
        if loads != n:
            raise Wrong(f"n = {n:,}: {loads:,} loads from {name}, but {n:,} are enough, one "
                        f"load for each element. Does each thread compute only its own element?")
    loads, stores = traffic["out"]
    if stores != n or loads:
        raise Wrong(f"n = {n:,}: {stores:,} stores to out and {loads:,} loads from it. Keep the "
                    f"sum in a register and store it once: {n:,} stores")


def _right(out, rows, cols, where):
    a, b, c, bias = inputs(rows, cols)
    of_column = np.tile(bias, rows)
    total = a.astype(float) + b + c + of_column
    wanted = np.maximum(total, 0)
    # Three additions and a rounding to float32 of numbers below 32 make an error of 4 * 32 * 2^-24.
    wrong = np.flatnonzero(~(np.abs(out - wanted) < 8e-6))
    if not len(wrong):
        return
    i = int(wrong[0])
    hint = ""
    if np.allclose(out, total, atol=1e-5):
        hint = " A negative sum must become 0."
    elif np.allclose(out, np.maximum(total - of_column, 0), atol=1e-5):
        hint = " Is the bias added?"
    elif np.allclose(out, np.maximum(total - of_column, 0) + of_column, atol=1e-5):
        hint = " Add the bias before the max."
    right, is_now = apart(wanted[i], out[i])
    raise Wrong(f"{where}: out[{i}] should be {right}, is {is_now}; {len(wrong):,} "
                "elements are wrong." + hint)


def numbers_of_blocks(module, pairs):
    return [module.blocks(n, block) for n, block in pairs]


def grade_02b(student):
    """blocks(n, block) is the smallest number of blocks whose threads cover n elements."""
    for block in (256, 96, 1):
        sizes = (*SIZES, 96, 97)
        for n, got in zip(sizes, student.run(numbers_of_blocks, [(n, block) for n in sizes]),
                          strict=True):
            if isinstance(got, (float, np.floating)) or got != int(got):
                raise Wrong(f"blocks({n:,}, {block}) is {got!r}, a float. But a grid is a whole "
                            "number: use //")
            if got * block < n:
                raise Wrong(f"blocks({n:,}, {block}) is {got:,}: {got * block:,} threads. So "
                            f"element {got * block:,} has no thread. Round up")
            if (got - 1) * block >= n:
                raise Wrong(f"blocks({n:,}, {block}) is {got:,}: the last block has no element. "
                            f"{-(-n // block):,} blocks are enough")
        yield f"blocks of {block}: n = {', '.join(f'{n:,}' for n in SIZES)} and others"


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
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
            "but bias has 5 elements",
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
            "one load for each element",
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
        "rounds down": ("return n // block", "has no thread. Round up"),
        "always one more": ("return n // block + 1", "the last block has no element"),
        "a float": ("return n / block", "a grid is a whole number"),
        "a block for every element": ("return n", "the last block has no element"),
    },
}
