"""Grades work/20_inference.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

# ---- 20a ----


def matrix(kind, n=5, k=7):
    """Returns a matrix whose rows have different magnitudes.

    kind: "ties", "a row of zeros" or "all below zero" changes the matrix in this way."""
    rng = np.random.default_rng([SEED, n, k])
    w = (rng.standard_normal((n, k)) * np.geomspace(1e-3, 10, n)[:, None]).astype(np.float32)
    if kind == "ties":  # w / scale is 127, 0.5, 1.5, 2.5 ...: half-way, exactly
        w = np.tile(np.arange(k, dtype=np.float32) + 0.5, (n, 1)) * 2.0 ** np.arange(n)[:, None]
        w[:, 0] = -127 * 2.0 ** np.arange(n)
        w = w.astype(np.float32)
    if kind == "a row of zeros":
        w[n // 2] = 0
    if kind == "all below zero":
        w = -np.abs(w)
    return w


def quantised(module, kind, n, k):
    """Returns (numbers, scales, True if w was not changed), or None if it divided by zero."""
    w = matrix(kind, n, k)
    try:
        with np.errstate(divide="raise", invalid="raise"):
            q, scale = module.per_channel(w)
    except FloatingPointError:
        return None
    q, scale = np.asarray(q), np.asarray(scale)
    return q, scale, bool((w == matrix(kind, n, k)).all())


def reference(w):
    scale = np.abs(w).max(axis=1) / np.float32(127)
    return np.rint(w / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8), scale


def grade_20a(student):
    """whole numbers and scales of matrices, with ties, zeros and rows below zero."""
    for kind in ("rows of different size", "all below zero", "a row of zeros", "ties"):
        for n, k in ((1, 1), (5, 7), (64, 33)):
            w = matrix(kind, n, k)
            want, want_scale = reference(w)
            where, got = f"w ({n}, {k}), {kind}", student.run(quantised, kind, n, k)
            if got is None:
                raise Wrong(f"{where}: divided by zero. A row of zeros must not divide by its "
                            "scale, 0")
            q, scale, whole = got
            if q.shape != (n, k) or q.dtype != np.int8:
                raise Wrong(f"{where}: want whole numbers ({n}, {k}) of int8, got {q.shape} of "
                            f"{q.dtype}")
            if scale.shape != (n,) or scale.dtype != np.float32:
                raise Wrong(f"{where}: want scales ({n},) of float32, one for each row, got "
                            f"{scale.shape} of {scale.dtype}")
            _judge_scales(where, w, scale, want_scale)
            _judge_numbers(where, q, w, want, scale)
            if not whole:
                raise Wrong(f"{where}: the result is right, but w was changed. It belongs to the "
                            "caller: make a new array")
        yield f"{kind}: the numbers and the scales"


def near(a, b):
    return np.allclose(a, b, rtol=1e-5, atol=0)


def _judge_scales(where, w, scale, want):
    if not np.isfinite(scale).all():
        raise Wrong(f"{where}: a scale is {scale[~np.isfinite(scale)][0]}")
    if near(scale, want):
        return
    i = int(np.argmax(np.abs(scale - want) / np.where(want > 0, want, 1)))
    cause = "It is the largest |w[i]| of the row divided by 127"
    if np.ptp(scale) == 0 and len(w) > 1:
        cause = "All rows have the same scale. Each needs its own, its largest |w[i]| / 127"
    elif near(scale, np.maximum(w.max(1), 0) / 127) or (scale < 0).any():
        cause = "Numbers below zero count, too: take the largest |w[i]|"
    elif near(scale * 128, want * 127):
        cause = "From -127 to 127 are 254 steps: the largest number becomes 127, not 128"
    elif near(scale * 255, w.max(1) - w.min(1)) or near(scale * 255, 254 * want):
        cause = "The scale is symmetric: zero stays zero, and the largest |w[i]| becomes 127"
    elif want[i] == 0:
        cause = "A row of zeros has scale 0"
    raise Wrong(f"{where}: the scale of row {i} is {scale[i]:.6g}, want {want[i]:.6g}. {cause}")


def _judge_numbers(where, q, w, want, scale):
    if (q == want).all():
        return
    i, j = np.argwhere(q != want)[0]
    exact = w[i, j] / scale[i] if scale[i] else 0.0
    cause = "It is w / the row's scale, rounded"
    if abs(exact - np.trunc(exact)) == 0.5:
        cause = "A tie goes to the even neighbour: np.rint"
    elif (q == np.trunc(w / np.where(scale, scale, 1)[:, None])).all():
        cause = "It was rounded towards zero: a cast cuts the fraction off, np.rint rounds"
    elif (q == np.floor(w / np.where(scale, scale, 1)[:, None])).all():
        cause = "It was rounded down: np.rint rounds to the nearest"
    elif q[i, j] == -want[i, j]:
        cause = "127 and -127 are the ends: beyond them int8 overflows to the other sign"
    raise Wrong(f"{where}: w[{i}, {j}] / scale[{i}] = {exact:.4g} became {q[i, j]}, want "
                f"{want[i, j]}. {cause}")


# ---- 20b ----

FEW = {  # (bytes, first line, last line)
    "one value": [(64, 0, 3)],
    "a chain": [(100, 0, 1), (60, 1, 2), (100, 2, 3), (60, 3, 4)],
    "all alive together": [(10, 0, 9), (30, 2, 4), (20, 3, 3)],
    "one line in common": [(10, 0, 5), (10, 5, 9), (10, 9, 9)],
    "equal sizes": [(8, 4, 6), (8, 0, 4), (8, 2, 2), (8, 6, 8)],
    "a low one and a high one": [(100, 0, 1), (60, 5, 6), (20, 5, 6), (10, 0, 6)],
    "two gaps": [(100, 0, 1), (90, 0, 9), (80, 0, 2), (70, 0, 9), (60, 3, 9), (50, 4, 9)],
}


def values(which):
    """Returns lifetimes. If `which` is a name in FEW, returns its lifetimes there. If `which` is a
    number, it is the seed of random lifetimes."""
    if which in FEW:
        return FEW[which]
    rng = np.random.default_rng([SEED, which])
    n = int(rng.integers(5, 40))
    first = rng.integers(0, n, n)
    return [(int(s), int(a), int(a + d)) for s, a, d in zip(
        rng.integers(1, 12, n) * 16, first, rng.integers(0, 1 + n // 3, n), strict=True)]


def planned(module, which):
    given = [tuple(v) for v in values(which)]
    offsets = module.best_fit(given)
    return [int(at) for at in offsets], given == values(which)


def grade_20b(student):
    """the offset of each value: nothing overlaps, and it is the offset of best fit."""
    for which in [*FEW, *range(30)]:
        spans = values(which)
        got, whole = student.run(planned, which)
        name = which if which in FEW else f"random values, number {which}"
        if len(got) != len(spans):
            raise Wrong(f"{name}: wanted an offset for each of {len(spans)} values, in the order "
                        f"of the list; got {len(got)} offsets")
        _judge_overlap(name, spans, got)
        want = _best_fit(spans)
        if got != want:
            i = next(i for i in _order(spans) if got[i] != want[i])
            raise Wrong(f"{name}: value {i}, {_text(spans[i])}: wanted offset {want[i]}; got "
                        f"{got[i]}. {_cause(spans, got, i)}")
        if not whole:
            raise Wrong(f"{name}: the result is right, but the list was changed. It belongs to "
                        "the caller")
        if which in ("a chain", "two gaps", 29):
            yield f"{name}: as best fit places them"


def _text(span):
    return f"{span[0]} bytes in lines {span[1]} to {span[2]}"


def _judge_overlap(name, spans, got):
    if min(got) < 0:
        raise Wrong(f"{name}: an offset is {min(got)}, but the arena begins at 0")
    pairs = [(j, i) for i in range(len(spans)) for j in range(i) if _meet(spans[i], spans[j])
             and got[i] < got[j] + spans[j][0] and got[j] < got[i] + spans[i][0]]
    if pairs:
        (j, i), once = pairs[0], all(_meet(spans[i], spans[j]) == 1 for j, i in pairs)
        cause = ("They meet at one line: the values that a line reads and the value that it makes "
                 "are alive together" if once else
                 "Count each gap from the highest end of the values below it")
        raise Wrong(f"{name}: values {j} ({_text(spans[j])}) and {i} ({_text(spans[i])}) overlap, "
                    f"at {got[j]} and {got[i]}. {cause}")


def _meet(a, b):
    """Returns the number of lines at which both values are alive."""
    return max(min(a[2], b[2]) - max(a[1], b[1]) + 1, 0)


def _order(spans):
    return sorted(range(len(spans)), key=lambda i: -spans[i][0])


def _fit(spans, offsets, placed, i):
    """Returns (gaps, end). gaps: [(size, start)] of the gaps in which value i has room. end: the
    highest end of the placed values that are alive together with value i."""
    n, first, last = spans[i]
    end, gaps = 0, []
    for at, j in sorted((offsets[j], j) for j in placed):
        m, begins, ends = spans[j]
        if begins <= last and first <= ends:
            if at - end >= n:
                gaps.append((at - end, end))
            end = max(end, at + m)
    return gaps, end


def _best_fit(spans):
    offsets, placed = [0] * len(spans), []
    for i in _order(spans):
        gaps, end = _fit(spans, offsets, placed, i)
        offsets[i] = min(gaps)[1] if gaps else end
        placed.append(i)
    return offsets


def _cause(spans, got, i):
    """Returns why value i has a wrong offset. All values before it have right offsets."""
    order = _order(spans)
    before = order[:order.index(i)]
    gaps, end = _fit(spans, got, before, i)
    if gaps and got[i] == end:
        return f"There is a gap that holds it: {min(gaps)[0]} bytes at {min(gaps)[1]}"
    apart = any(a[2] < b[1] for a in spans for b in spans)
    if apart and got == _total(spans):
        return "No values share bytes: values that are never alive together may share"
    if not gaps and got[i] in (0, *(got[j] + spans[j][0] for j in before)) and got[i] > end:
        return "A value that is never alive together with it is not in the way"
    if not gaps:
        later = order[order.index(i):]
        if any(got[j] + spans[j][0] <= got[i] or got[j] >= got[i] for j in later if j != i):
            return ("Was a smaller value, or a later one of the same size, placed before it? The "
                    "largest comes first")
        return "No gap holds it. Place it at the highest end of the values in the way"
    chosen = [g for g in gaps if g[1] == got[i]]
    if chosen and chosen[0][0] > min(gaps)[0]:
        return (f"This gap has {chosen[0][0]} bytes; the smallest that holds it has "
                f"{min(gaps)[0]}")
    if chosen:
        return "If gaps are equal, take the lowest"
    return "Place it at the start of a gap. And was a smaller value placed before it?"


def _total(spans):
    at = np.cumsum([0, *(n for n, _, _ in spans)])
    return at[:-1].tolist()


WRONG = {
    "20a": {
        "one scale for all": (
            {"np.abs(w).max(axis=1) / np.float32(127)":
             "np.full(len(w), np.abs(w).max() / np.float32(127))"},
            "All rows have the same scale"),
        "columns": (
            {"np.abs(w).max(axis=1)": "np.abs(w).max(axis=0)"}, ""),
        "divides by zero": (
            {"np.where(scale > 0, scale, 1)": "scale"}, "must not divide by its scale, 0"),
        "a row of zeros has scale 1": (
            """
scale = np.abs(w).max(axis=1) / np.float32(127)
scale[scale == 0] = 1
return np.rint(w / scale[:, None]).astype(np.int8), scale
""",
            "A row of zeros has scale 0"),
        "a cast": (
            {"np.rint(w / np.where(scale > 0, scale, 1)[:, None])":
             "np.trunc(w / np.where(scale > 0, scale, 1)[:, None])"},
            "a cast cuts the fraction off"),
        "ties away from zero": (
            """
scale = np.abs(w).max(axis=1) / np.float32(127)
x = w / np.where(scale > 0, scale, 1)[:, None]
return (np.sign(x) * np.floor(np.abs(x) + np.float32(0.5))).astype(np.int8), scale
""",
            "A tie goes to the even"),
        "128 steps": (
            {"/ np.float32(127)": "/ np.float32(128)"}, "127, not 128"),
        "the largest, not its size": (
            {"np.abs(w).max(axis=1)": "w.max(axis=1)"}, "Numbers below zero count"),
    },
    "20b": {
        "behind each other": (
            """
for i in range(1, len(lifetimes)):
    offsets[i] = offsets[i - 1] + lifetimes[i - 1][0]
""",
            "may share"),
        "first fit": ({"min(gaps)[1]": "gaps[0][1]"}, "the smallest that holds it"),
        "in the order of the list": (
            {"sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i][0])":
             "range(len(lifetimes))"}, "The largest comes first"),
        "the smallest first": ({"-lifetimes[i][0]": "lifetimes[i][0]"}, "The largest comes first"),
        "no gaps": ({"min(gaps)[1] if gaps else end": "end"}, "There is a gap that holds it"),
        "lives that touch": ({"begins <= last and first <= ends": "begins < last and first < ends"},
                             "They meet at one line"),
        "the end of the last one": ({"end = max(end, at + other)": "end = at + other"},
                                    "overlap"),
        "everything is in the way": ({"if begins <= last and first <= ends:": "if True:"}, ""),
    },
}
