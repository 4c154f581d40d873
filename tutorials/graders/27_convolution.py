"""Grades work/27_convolution.py.   Test: tests/tutorials/test_exercises.py"""

import tempfile
import tracemalloc

import numpy as np

import minidl
from minidl import cuda
from minidl.course.grade import Wrong, apart
from minidl.plain import convolution as plain

SEED = 0  # `minidl check --student NAME` sets another one for each student

# (channels, kh, kw, images, oh, ow). Some windows and results are no squares.
SIZES = [(1, 1, 1, 1, 1, 1), (2, 3, 3, 2, 4, 4), (3, 2, 3, 2, 5, 3), (2, 4, 1, 3, 2, 6)]


def offsets(x_shape, kh, kw):
    """Returns what offsets() of the tutorial returns. Reads the indices from an image whose pixels
    are their own positions."""
    place = np.arange(np.prod(x_shape)).reshape(x_shape)
    oh, ow = x_shape[2] - kh + 1, x_shape[3] - kw + 1
    return place[0, :, :kh, :kw].ravel(), place[:, 0, :oh, :ow].ravel()


# -- 27a


def all_indices(module, c, kh, kw, n, oh, ow):
    return module.indices(np.arange(c * kh * kw), np.arange(n * oh * ow), kh, kw, oh, ow)


def one_index(module, k, p, kh, kw, oh, ow):
    return module.indices(k, p, kh, kw, oh, ow)


def grade_27a(student):
    """indices: every number of the columns comes from its position in the image."""
    for c, kh, kw, n, oh, ow in SIZES:
        got = _pairs(student.run(all_indices, c, kh, kw, n, oh, ow))
        what = f"a window of {kh} x {kw}"
        _check_part(got[0], "k", "(c, i, j)", what, (c, kh, kw), "the window")
        _check_part(got[1], "p", "(n, r, s)", f"a result of {oh} x {ow}", (n, oh, ow), "the result")
        if kh * kw > 1:  # now k and p are numbers, not arrays
            k, p = c * kh * kw - 1, n * oh * ow - 1
            got = _pairs(student.run(one_index, k, p, kh, kw, oh, ow))
            wanted = (c - 1, kh - 1, kw - 1), (n - 1, oh - 1, ow - 1)
            if got != wanted:
                raise Wrong(f"k = {k} and p = {p}, two numbers: wanted {wanted}; got {got}")
        yield f"{c} channels, {what}; {n} images, a result of {oh} x {ow}"


def _pairs(got):
    if not (isinstance(got, tuple) and [len(part) if isinstance(part, tuple) else 0
                                        for part in got] == [3, 3]):
        raise Wrong("wanted two tuples of three numbers, (c, i, j) and (n, r, s)")
    return got


def _check_part(got, name, names, what, shape, whose):
    count = int(np.prod(shape))
    for part in got:
        if np.asarray(part).dtype.kind not in "iu":
            raise Wrong(f"{what}: wanted whole numbers {names}; got {part!r:.60}. Use // instead "
                        "of /")
    got = np.stack([np.broadcast_to(part, count) for part in got])
    wanted = np.stack(np.unravel_index(np.arange(count), shape))
    wrong = np.flatnonzero((got != wanted).any(0))
    if not len(wrong):
        return
    at = int(wrong[0])
    _, rows, cols = shape
    hint = ""
    inside = np.arange(count) % (rows * cols)
    by_columns = np.arange(count) // rows % cols, np.arange(count) % rows
    if np.array_equal(got[1], by_columns[1]) and np.array_equal(got[2], by_columns[0]):
        hint = f". The numbers go along a row of {whose} first: the last index changes fastest"
    elif rows != cols and np.array_equal(got[1:], [inside // rows, inside % rows]):
        hint = f". A row of {whose} has {cols} numbers"
    elif {*map(tuple, got)} == {*map(tuple, wanted)}:
        hint = f". These are the right numbers in another order: wanted {names}"
    elif np.array_equal(got[1], wanted[1]) and np.array_equal(got[2], wanted[2]):
        hint = f". The first of {names} grows by one after {rows} * {cols} numbers"
    elif (got[1] >= rows).any() or (got[2] >= cols).any():
        hint = (f". A row must be less than {rows} and a column less than {cols}. Take the "
                "remainder by %")
    raise Wrong(f"{what}, {name} = {at}: {names} should be {_numbers(wanted[:, at])}, is "
                f"{_numbers(got[:, at])}; {len(wrong)} of {count} are wrong{hint}")


def _numbers(values):
    return f"({', '.join(str(int(v)) for v in values)})"


# -- 27b

# (images, channels, H, W, output channels, kh, kw, step)
GRADIENTS = [(1, 1, 3, 3, 1, 2, 2, 64), (2, 3, 6, 5, 4, 3, 2, 7), (3, 2, 9, 8, 5, 2, 3, 16),
             (2, 8, 34, 34, 3, 3, 3, 64)]


def layer(n, c, h, width, n_out, kh, kw):
    """Returns (x, gy) in float64."""
    draw = minidl.Generator(SEED + 27)
    x = draw.normal(n, c, h, width).astype(float)
    return x, draw.normal(n, n_out, h - kh + 1, width - kw + 1).astype(float)


def gradient(module, *sizes):
    """Returns (gw, the largest number of bytes held at one time, without x and gy)."""
    *_, kh, kw, step = sizes
    x, gy = layer(*sizes[:-1])
    module.offsets = offsets  # 27b can be right before 27a is
    tracemalloc.start()
    try:
        gw = module.weight_gradient(x, gy, kh, kw, step)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return gw, most


def grade_27b(student):
    """weight_gradient: the product over all pixels, with few pixels at a time."""
    for sizes in GRADIENTS:
        n, c, h, width, n_out, kh, kw, step = sizes
        x, gy = layer(*sizes[:-1])
        got, most = student.run(gradient, *sizes)
        _, wanted = plain.gradients(gy, x, np.zeros((n_out, c, kh, kw)))
        n_pixels = gy[:, 0].size
        what = f"{n} images, {n_pixels} pixels, step {step}"
        if np.shape(got) != wanted.shape:
            raise Wrong(f"{what}: gw should be (O, C, kh, kw) = {wanted.shape}, is {np.shape(got)}")
        # float64 sums of up to 2048 products of size 1
        wrong = np.argwhere(~(np.abs(got - wanted) < 1e-9))
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            right, is_now = apart(wanted[at], got[at])
            raise Wrong(f"{what}: gw{list(at)} should be {right}, is {is_now}; "
                        f"{len(wrong)} of {wanted.size} are wrong"
                        + _cause(got, wanted, x, gy, sizes))
        columns = 8 * c * kh * kw * n_pixels
        if n_pixels > 10 * step and most > columns / 2:
            raise Wrong(f"{what}: {most:,} bytes were held; all columns have {columns:,} bytes. "
                        f"Make the columns of {step} pixels, multiply, and free them")
        yield f"{what}: equal to the plain page's gradient; bytes held: {most:,}"


def _cause(got, wanted, x, gy, sizes):
    """Returns the hint of a known mistake, or ""."""
    n, c, _, _, n_out, kh, kw, step = sizes
    of_tap, of_pixel = offsets(x.shape, kh, kw)
    columns = x.ravel()[of_tap[:, None] + of_pixel]
    rows = gy.transpose(1, 0, 2, 3).reshape(n_out, -1)
    whole = len(of_pixel) // step * step
    last = (len(of_pixel) - 1) // step * step

    def alike(rows, columns):
        return np.allclose(got, (rows @ columns.T).reshape(got.shape))

    for hint, same in (
        ("the gradients of all images are summed, but this is divided by their number",
         np.allclose(n * got, wanted)),
        ("the last pixels are missing: their number may be no multiple of step",
         alike(rows[:, :whole], columns[:, :whole])),
        ("this is only the product of the last step: add to gw, do not replace it",
         alike(rows[:, last:], columns[:, last:])),
        ("gy has the image first: (N, O, oh, ow). Bring O to the front before you reshape",
         alike(gy.reshape(n_out, -1), columns)),
        ("the window is reversed: row k of the columns belongs to gw[o, k]",
         np.allclose(got[:, :, ::-1, ::-1], wanted)),
    ):
        if same:
            return f": {hint}"
    return ""


# -- 27c

# (images, channels, H, W, output channels, kh, kw). K, O and P are below, at and above multiples
# of 8.
LAYERS = [(1, 2, 3, 3, 8, 2, 2), (2, 1, 4, 5, 3, 3, 3), (2, 3, 5, 4, 9, 2, 3)]


def tensors(n, c, h, width, n_out, kh, kw):
    """Returns (x, w) in float32."""
    draw = minidl.Generator(SEED + 28)
    return draw.normal(n, c, h, width), draw.normal(n_out, c, kh, kw)


def convolve(module, *sizes):
    """Returns (y, errors as text, loads of x, loads of w)."""
    x, w = tensors(*sizes)
    n_out, _, kh, kw = w.shape
    of_tap, of_pixel = (a.astype(np.int32) for a in offsets(x.shape, kh, kw))
    oh, ow = plain.places(x, w)
    y = np.full((len(x), n_out, oh, ow), np.nan, np.float32)
    grid = -(-len(of_pixel) // 8), -(-n_out // 8)
    with tempfile.TemporaryDirectory() as folder:
        report = cuda.check(
            module.source(folder, module.KERNEL), grid, (8, 8),
            (y, x, w, of_tap, of_pixel, n_out, len(of_tap), len(of_pixel), oh * ow),
            name="convolve", outputs=["y"])
    errors = [f"{f}\n    {f.remedy}" for f in report.errors]
    return y, errors, report.ledger["x"].loads, report.ledger["w"].loads


def grade_27c(student):
    """the kernel's step: right values in every order of threads, and each number fetched once."""
    for sizes in LAYERS:
        n, c, h, width, n_out, kh, kw = sizes
        what = f"{c} to {n_out} channels, {n} x {h} x {width}, a window of {kh} x {kw}"
        y, errors, of_x, of_w = student.run(convolve, *sizes)
        if errors:
            raise Wrong(f"{what}:\n" + "\n".join(errors))
        x, w = tensors(*sizes)
        wanted = plain.by_columns(x, w)
        # float32 sums of up to 18 products of size 1 to 9
        wrong = np.argwhere(~(np.abs(y - wanted) < 1e-4))
        if len(wrong):
            at = tuple(int(i) for i in wrong[0])
            right, is_now = apart(wanted[at], y[at])
            raise Wrong(f"{what}: y{list(at)} should be {right}, is {is_now}; "
                        f"{len(wrong)} of {y.size} are wrong{_cause_in_tiles(y, x, w)}")
        n_pixels, n_taps = y[:, 0].size, w[0].size
        for name, loads, most in (("x", of_x, n_taps * n_pixels * -(-n_out // 8)),
                                  ("w", of_w, w.size * -(-n_pixels // 8))):
            if loads > most:
                raise Wrong(f"{what}: {loads:,} loads of {name}, but {most:,} are enough: a block "
                            "fetches each number once, into shared memory, and reads it there")
        yield f"{what}: values, three orders, loads of x and w"


def _cause_in_tiles(y, x, w):
    """Returns the hint of a known mistake in the sums, or ""."""
    n_out, c, kh, kw = w.shape
    of_tap, of_pixel = offsets(x.shape, kh, kw)
    rows, columns = w.reshape(n_out, -1), x.ravel()[of_tap[:, None] + of_pixel]
    taps = np.arange(len(of_tap))

    def alike(some):
        made = (rows[:, some] @ columns[some]).reshape(n_out, len(x), -1).transpose(1, 0, 2)
        return np.allclose(y.reshape(made.shape), made, atol=1e-4)

    for hint, some in (
        (". The last of each 8 products is missing: l goes from 0 to TILE - 1", taps % 8 < 7),
        (". The first of each 8 products is missing: l begins with 0", taps % 8 > 0),
        (". This is only the sum of the last step: add to sum", taps >= (len(taps) - 1) // 8 * 8),
    ):
        if alike(some):
            return hint
    return ""


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
_FETCH = """
ws[v][u] = o < n_out && k0 + u < n_taps ? w[o * n_taps + k0 + u] : 0;
xs[v][u] = k0 + v < n_taps && p < n_pixels ? x[of_tap[k0 + v] + of_pixel[p]] : 0;
"""
_SUM = "for (int l = 0; l < TILE; ++l) sum += ws[v][l] * xs[l][u];\n"
_ROWS = """
n_out = gy.shape[1]
of_tap, of_pixel = offsets(x.shape, kh, kw)
gw = np.zeros((n_out, len(of_tap)), x.dtype)
"""
_FRONT = "gy = gy.transpose(1, 0, 2, 3).reshape(n_out, -1)\n"
_STEP = """    columns = x.ravel()[of_tap[:, None] + of_pixel[p : p + step]]
    gw += gy[:, p : p + step] @ columns.T
"""
_END = "return gw.reshape(n_out, x.shape[1], kh, kw)"
WRONG = {
    "27a": {
        "the window column by column": (
            "return (k // (kh * kw), k % kh, k // kh % kw), (p // (oh * ow), p // ow % oh, p % ow)",
            "go along a row of the window first",
        ),
        "the result column by column": (
            "return (k // (kh * kw), k // kw % kh, k % kw), (p // (oh * ow), p % oh, p // oh % ow)",
            "go along a row of the result first",
        ),
        "no remainder": (
            "return (k // (kh * kw), k // kw, k % kw), (p // (oh * ow), p // ow, p % ow)",
            "Take the remainder by %",
        ),
        "floats": (
            "return (k / (kh * kw), k / kw % kh, k % kw), (p / (oh * ow), p / ow % oh, p % ow)",
            "Use // instead of /",
        ),
        "the image last": (
            "return (k // (kh * kw), k // kw % kh, k % kw), (p // ow % oh, p % ow, p // (oh * ow))",
            "in another order: wanted (n, r, s)",
        ),
        "the channel after one row": (
            "return (k // kw, k // kw % kh, k % kw), (p // (oh * ow), p // ow % oh, p % ow)",
            "grows by one after 3 * 3 numbers",
        ),
    },
    "27b": {
        "the last pixels are dropped": (
            _ROWS + _FRONT + "for p in range(0, len(of_pixel) // step * step, step):\n"
            + _STEP + _END,
            "the last pixels are missing",
        ),
        "the last product replaces the others": (
            _ROWS + _FRONT + "for p in range(0, len(of_pixel), step):\n"
            + _STEP.replace("gw +=", "gw =") + _END,
            "add to gw, do not replace it",
        ),
        "the image stays first": (
            _ROWS + "gy = gy.reshape(n_out, -1)\nfor p in range(0, len(of_pixel), step):\n"
            + _STEP + _END,
            "Bring O to the front",
        ),
        "all columns at once": (
            _ROWS + _FRONT + "columns = x.ravel()[of_tap[:, None] + of_pixel]\n"
            "gw += gy @ columns.T\n" + _END,
            "Make the columns of 64 pixels",
        ),
        "the mean over the images": (
            _ROWS + _FRONT + "for p in range(0, len(of_pixel), step):\n"
            + _STEP + "gw /= len(x)\n" + _END,
            "divided by their number",
        ),
        "the window is turned around": (
            _ROWS + _FRONT + "for p in range(0, len(of_pixel), step):\n" + _STEP
            + "gw = gw.reshape(n_out, x.shape[1], kh, kw)\nreturn gw[:, :, ::-1, ::-1]",
            "the window is reversed",
        ),
    },
    "27c": {
        "no barrier before the sum": (_FETCH + _SUM + "__syncthreads();", "data race"),
        "no barrier after the sum": (_FETCH + "__syncthreads();\n" + _SUM, "data race"),
        "no barrier": (_FETCH + _SUM, "data race"),
        "the barrier inside an if": (
            """
ws[v][u] = xs[v][u] = 0;
if (o < n_out && k0 + u < n_taps) {
  ws[v][u] = w[o * n_taps + k0 + u];
  __syncthreads();
}
if (k0 + v < n_taps && p < n_pixels) xs[v][u] = x[of_tap[k0 + v] + of_pixel[p]];
__syncthreads();
for (int l = 0; l < TILE; ++l) sum += ws[v][l] * xs[l][u];
__syncthreads();
""",
            "divergent barrier",
        ),
        "no guard": (
            "ws[v][u] = w[o * n_taps + k0 + u];\nxs[v][u] = x[of_tap[k0 + v] + of_pixel[p]];\n"
            "__syncthreads();\n" + _SUM + "__syncthreads();",
            "out of bounds",
        ),
        "nothing is written outside": (
            "if (o < n_out && k0 + u < n_taps) ws[v][u] = w[o * n_taps + k0 + u];\n"
            "if (k0 + v < n_taps && p < n_pixels) xs[v][u] = x[of_tap[k0 + v] + of_pixel[p]];\n"
            "__syncthreads();\n" + _SUM + "__syncthreads();",
            "reads",
        ),
        "seven products of eight": (
            _FETCH + "__syncthreads();\n" + _SUM.replace("l < TILE", "l < TILE - 1")
            + "__syncthreads();",
            "The last of each 8 products is missing",
        ),
        "no tiles": (
            """
for (int l = k0; l < k0 + TILE && l < n_taps; ++l)
  if (o < n_out && p < n_pixels) sum += w[o * n_taps + l] * x[of_tap[l] + of_pixel[p]];
""",
            "a block fetches each number once",
        ),
    },
}
