"""Grades work/03_kernel_tour.py and work/tour.cu.   Test: tests/tutorials/test_exercises.py"""

import re
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

SHAPES = [(1, 1, 32), (3, 100, 64), (2, 257, 128)]  # rows, columns, threads in a block


def centered(rows, cols):
    """Returns the input of `center`."""
    return minidl.Generator(SEED + 31).normal(rows, cols)


def near(rows, cols, offset):
    """Returns the input of `softmax_online`."""
    x = 3 * minidl.Generator(SEED + 32).normal(rows, cols) + np.float32(offset)
    x[0, -1] = x.max() + 1  # the largest comes last
    return x


def center(module, rows, cols, block):
    return _watched(module, "center", centered(rows, cols), block, 4 * block)


def softmax_online(module, rows, cols, block, offset):
    return _watched(module, "softmax_online", near(rows, cols, offset), block, 8 * block)


def _watched(module, name, x, block, shared_mem):
    """Launches in the check form.

    Returns (y, errors as text, stores to shared memory, loads of x)."""
    y, (rows, cols) = np.full_like(x, np.nan), x.shape
    with tempfile.TemporaryDirectory() as folder:
        file = _without_the_other(Path(module.__file__).with_name("tour.cu"), name, Path(folder))
        report = cuda.check(file, rows, block, (y, x, cols), name=name, shared_mem=shared_mem,
                            outputs=["y"])
    errors = [f"{f}\n    {f.remedy}" for f in report.errors]
    return y, errors, report.shared["s"].stores, report.ledger["x"].loads


EXERCISES = {"center": "03a", "softmax_online": "03b"}


def _without_the_other(file, name, folder):
    """Returns the file. If the other exercise is still blank, returns a copy that compiles."""
    text = file.read_text(encoding="utf-8")
    lines = ["" if re.match(rf'\s*#error "exercise (?!{EXERCISES[name]})', line) else line
             for line in text.split("\n")]
    if "\n".join(lines) == text:
        return file
    copy = folder / file.name
    copy.write_text("\n".join(lines), encoding="utf-8")
    return copy


def grade_03a(student):
    """center subtracts each row's mean in every thread order, with the traffic of a tree."""
    for rows, cols, block in SHAPES:
        y, errors, stores, _ = student.run(center, rows, cols, block)
        _no_errors(errors, rows, cols, block)
        x = centered(rows, cols)
        wanted = x - x.astype(float).mean(1, keepdims=True)
        hint = partial(_cause_of_sum, x, y, block)
        what = f"{rows} x {cols}, {block} threads: y"
        _close(y, wanted, 2e-6, what, "the row minus its mean", hint)
        allowed = rows * (2 * block - 1)
        if stores > allowed:
            raise Wrong(f"{rows} x {cols}, {block} threads: {stores:,} stores to shared memory; "
                        f"the tree needs {allowed:,}: one for each thread, and one for each of the "
                        f"{block - 1} additions of a block")
        yield f"{rows} x {cols}, {block} threads: values, three orders, barriers, shared memory"


def grade_03b(student):
    """softmax_online is right also for large x, and reads each element twice."""
    for rows, cols, block in SHAPES:
        for offset in (0.0, 200.0, -200.0):
            y, errors, _, loads = student.run(softmax_online, rows, cols, block, offset)
            _no_errors(errors, rows, cols, block)
            x = near(rows, cols, offset)
            e = np.exp(x.astype(float) - x.max(1, keepdims=True))
            what = f"{rows} x {cols} numbers near {offset:.0f}, {block} threads: y"
            hint = partial(_cause_of_softmax, x, y, block)
            _close(y, e / e.sum(1, keepdims=True), 2e-6, what, "the softmax of the row", hint)
            if loads > 2 * x.size:
                raise Wrong(f"{rows} x {cols}: {loads:,} loads of x, {loads / x.size:.0f} for each "
                            "element. One loop over the row is enough for both m and sum. A second "
                            "one writes the result")
        yield f"{rows} x {cols}, {block} threads: near 0, 200, -200; loads; three orders"


def _no_errors(errors, rows, cols, block):
    if errors:
        raise Wrong(f"{rows} rows of {cols}, {block} threads:\n" + "\n".join(errors))


def _cause_of_sum(x, y, block):
    """Returns a hint: which part is missing in the sum of the first row. "" if unknown."""
    total, partial = (x[0, 0] - y[0, 0]) * x.shape[1], [x[0, t::block].sum() for t in range(block)]
    if np.isclose(total, sum(partial[::2]), rtol=1e-3, atol=1e-4):
        return ". s[0] has the sum of the even threads, s[1] the rest. Is the step d = 1 missing?"
    return ""


def _rescaled_wrongly(m, total, v):
    return (v, (total * np.exp(v - m) if total else 0) + 1) if v > m else (m, total + np.exp(v - m))


LOOPS = {  # {hint: how a wrong loop changes (m, sum) for one element}
    "With a new m, the sum so far still belongs to the old m: rescale it to the new m":
        lambda m, total, v: (max(m, v), total + np.exp(v - max(m, v))),
    "With a new m, multiply the old sum by e^(old - new), not by e^(new - old)": _rescaled_wrongly,
    "An element above m must also add itself: e^(v - v) = 1":
        lambda m, total, v: (v, total * np.exp(m - v)) if v > m else (m, total + np.exp(v - m)),
}


def _cause_of_softmax(x, y, block):
    """Returns a hint: the wrong loop that gives this result. "" if it is unknown."""
    if not np.isfinite(y).all() and np.abs(x).max() > 90:
        return ". e^x overflows for large x. Use differences from m in exponents, at most 0"
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    if np.allclose(y * block, e / e.sum(1, keepdims=True), rtol=1e-3):
        return (f". That is 1/{block} of it. Every thread goes over the whole row, so every thread "
                "counts each element. A thread must take only j = t, t + blockDim.x, ...")
    for name, loop in LOOPS.items():
        tops, sums = [], []
        for t in range(block):
            m, total = -np.inf, 0.0
            for v in x[0, t::block].astype(float):
                m, total = loop(m, total, v)
            tops.append(m)
            sums.append(total)
        with np.errstate(all="ignore"):
            total = (np.array(sums) * np.exp(np.array(tops) - x[0].max())).sum()
            if np.allclose(y[0], np.exp(x[0] - x[0].max()) / total, rtol=1e-2):
                return f". {name}"
    return ""


def _close(got, wanted, bound, what, name, hint):
    # float32 sums of a few hundred numbers of size 1 have errors far below the bound
    wrong = np.argwhere(~(np.abs(got - wanted) < bound))
    if len(wrong):
        i = tuple(int(k) for k in wrong[0])
        raise Wrong(f"{what}[{i[0]}, {i[1]}] should be {wanted[i]:.6g}, {name}. It is "
                    f"{got[i]:.6g}. {len(wrong):,} elements are wrong{hint()}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "03a": {
        "no barrier before the tree": (
            """
s[t] = mine;
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  if (t < d) s[t] += s[t + d];
  __syncthreads();
}
""",
            "__syncwarp() or __syncthreads() between",
        ),
        "barrier inside the if": (
            """
s[t] = mine;
__syncthreads();
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  if (t < d) {
    s[t] += s[t + d];
    __syncthreads();
  }
}
""",
            "divergent barrier",
        ),
        "barrier before the addition alone": (
            """
s[t] = mine;
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  __syncthreads();
  if (t < d) s[t] += s[t + d];
}
""",
            "data race",
        ),
        "every thread adds to s[0]": (
            """
if (t == 0) s[0] = 0;
__syncthreads();
s[0] += mine;
__syncthreads();
""",
            "data race: thread 1 reads s[0], thread 0 wrote it",
        ),
        "too many threads add": (
            """
s[t] = mine;
__syncthreads();
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  if (t <= d) s[t] += s[t + d];
  __syncthreads();
}
""",
            "s[32], but the launch gave shared_mem=128",
        ),
        "thread 0 alone": (
            """
s[t] = mine;
__syncthreads();
if (t == 0)
  for (int k = 1; k < blockDim.x - 1; ++k) s[0] += s[k];
__syncthreads();
""",
            "the row minus its mean",
        ),
        "the sum goes through memory": (
            """
s[t] = mine;
__syncthreads();
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  float other = t < d ? s[t + d] : 0;
  __syncthreads();
  s[t] += other;
  __syncthreads();
}
""",
            "stores to shared memory; the tree needs",
        ),
    },
    "03b": {
        "the sum keeps the old m": (
            """
for (int j = t; j < cols; j += blockDim.x) {
  m = fmaxf(m, row[j]);
  sum += expf(row[j] - m);
}
""",
            "the softmax of the row",
        ),
        "rescaled the wrong way": (
            """
for (int j = t; j < cols; j += blockDim.x) {
  float v = row[j];
  if (v > m) {
    sum *= expf(v - m);
    m = v;
  }
  sum += expf(v - m);
}
""",
            "the softmax of the row",
        ),
        "no m": (
            """
m = 0;
for (int j = t; j < cols; j += blockDim.x) sum += expf(row[j]);
""",
            "numbers near 200",
        ),
        "two loops": (
            """
for (int j = t; j < cols; j += blockDim.x) m = fmaxf(m, row[j]);
for (int j = t; j < cols; j += blockDim.x) sum += expf(row[j] - m);
""",
            "One loop over the row",
        ),
        "reads past the row": (
            """
for (int j = t; j <= cols; j += blockDim.x) {
  float v = row[j];
  if (v > m) {
    sum *= expf(m - v);
    m = v;
  }
  sum += expf(v - m);
}
""",
            "out of bounds",
        ),
    },
}
