"""Grades work/29_flash_attention.py.   Test: tests/tutorials/test_exercises.py"""

import tempfile

import numpy as np

import minidl
from minidl import cuda
from minidl.course.grade import Wrong, apart, kind_of

SEED = 0  # `minidl check --student NAME` sets another one for each student


def draw(number, *shape):
    return minidl.Generator(SEED + number).normal(*shape).astype(float)


def _check_array(got, shape, dtype, name):
    if not isinstance(got, np.ndarray):
        raise Wrong(f"{name} should be an array of shape {shape}, is "
                    f"{kind_of(got)}")
    if got.shape != shape:
        raise Wrong(f"{name} should have the shape {shape}, has {got.shape}")
    if got.dtype != dtype:
        raise Wrong(f"{name} should be {np.dtype(dtype)} like its input, is {got.dtype}")


def _check_values(got, wanted, bound, name, cause=""):
    wrong = np.argwhere(~(np.abs(got - wanted) <= bound * (1 + np.abs(wanted))))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        right, is_now = apart(wanted[at], got[at])
        raise Wrong(f"{name}{list(at)} should be {right}, is {is_now}; {len(wrong)} "
                    f"of {wanted.size} are wrong{cause}")


def _first_cause(found, causes, bound):
    """Returns the hint of the first mistake that gives all arrays of `found`, or ""."""
    for text, *wrong in causes:
        if all(np.allclose(a, b, rtol=bound, atol=bound) for a, b in zip(found, wrong)):
            return f": {text}"
    return ""


# -- 29a

# {name: (rows, E, keys of each tile, dtype)}
TILES = {
    "one tile": (3, 2, [4], "float64"),
    "the maximum grows": (4, 3, [2, 3, 4], "float64"),
    "the maximum falls": (5, 1, [3, 3, 2], "float64"),
    "tiles of one key": (2, 4, [1, 1, 1, 1], "float64"),
    "masked keys": (6, 3, [3, 3, 3], "float64"),
    "scores of some 1000": (4, 2, [3, 3, 3], "float64"),
    "float32": (7, 5, [4, 4, 1], "float32"),
}


def tiles_of(name):
    """Returns the scores and values of each tile, [(s, v), ...]."""
    n_rows, width, sizes, dtype = TILES[name]
    tiles = []
    for number, n in enumerate(sizes):
        s, v = draw(290 + number, n_rows, n), draw(295 + number, n, width)
        if name == "the maximum grows":
            s += 2 * number
        elif name == "the maximum falls":
            s -= 3 * number
        elif name == "scores of some 1000":
            s *= 1000
        elif name == "masked keys" and number:
            s[: 3 * number - 2, 1:] = -np.inf  # some keys
            s[0] = -np.inf  # row 0 sees no key of this tile
        tiles.append((s.astype(dtype), v.astype(dtype)))
    return tiles


def start_of(name):
    n_rows, width, _, dtype = TILES[name]
    return (np.full((n_rows, 1), -np.inf, dtype), np.zeros((n_rows, 1), dtype),
            np.zeros((n_rows, width), dtype))


def add_all(module, name):
    """Returns [(m, total, o, True if s and v were not changed)] after each tile, or a text.

    The text tells the kind of a result that is no triple."""
    state, found = start_of(name), []
    for s, v in tiles_of(name):
        before = s.copy(), v.copy()
        with np.errstate(all="ignore"):  # what overflows is judged below, in words
            state = module.add_tile(*state, s, v)
        if not isinstance(state, (tuple, list)) or len(state) != 3:
            return kind_of(state)
        same = bool(np.array_equal(before[0], s) and np.array_equal(before[1], v))
        found.append((*[x.copy() if isinstance(x, np.ndarray) else x for x in state], same))
        if not all(isinstance(x, np.ndarray) for x in state):
            break
    return found


def after(tiles):
    """Returns (m, total, o) of these tiles. Joins their scores first, and needs no running sums."""
    s, v = (np.concatenate([tile[i].astype(float) for tile in tiles], axis=1 - i) for i in (0, 1))
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - m)
    return m, p.sum(axis=1, keepdims=True), p @ v


def grade_29a(student):
    """add_tile: after each tile, the maximum and both sums are of all keys so far."""
    for name, (n_rows, width, sizes, dtype) in TILES.items():
        tiles = tiles_of(name)
        found = student.run(add_all, name)
        if isinstance(found, str):
            raise Wrong(f"{name}: wanted (m, total, o), three arrays; got {found}")
        bound = 1e-11 if dtype == "float64" else 1e-5  # float32: sums of up to 9 products
        before = start_of(name)
        for number, (*state, same) in enumerate(found):
            what = f"{name}, after tile {number + 1} of {len(sizes)}"
            for x, part, columns in zip(state, ("m", "total", "o"), (1, 1, width), strict=True):
                _check_array(x, (n_rows, columns), dtype, f"{what}: {part}")
            wanted = after(tiles[: number + 1])
            cause = _cause_of_tile(state, before, tiles[number], bound)
            for x, right, part in zip(state, wanted, ("m", "total", "o"), strict=True):
                _check_values(x, right, bound, f"{what}: {part}", cause)
            if not same:
                raise Wrong(f"{what}: s or v was changed. Make a new array, because other code "
                            "still needs the old one")
            before = wanted
        yield f"{name}: {', '.join(map(str, sizes))} keys"


def _cause_of_tile(state, before, tile, bound):
    m, total, o = (x.astype(float) for x in before)
    s, v = (x.astype(float) for x in tile)
    own = s.max(axis=1, keepdims=True)
    new = np.maximum(m, own)
    with np.errstate(all="ignore"):
        shrink = np.exp(m - new)
        grow = np.exp(new - m)
        p, of_tile, bare = np.exp(s - new), np.exp(s - own), np.exp(s)
        more, values = p.sum(axis=1, keepdims=True), p @ v
        right = new, shrink * total + more, shrink * o + values
        everywhere = np.maximum(m, s.max())
        return _first_cause(state, (
            ("neither sum is scaled to the new maximum: multiply the old sums by "
             "e^(old m - new m)", new, total + more, o + values),
            ("total still has the old m in it: multiply it by e^(old m - new m)",
             new, total + more, right[2]),
            ("o still has the old m in it: multiply it by e^(old m - new m), as total",
             new, right[1], o + values),
            ("the old sums grow, but should shrink: e^(old m - new m), and not "
             "e^(new m - old m)", new, grow * total + more, grow * o + values),
            ("the sums of the earlier tiles are lost: add the tile to them", new, more, values),
            ("m is the largest of this tile only: the earlier tiles may have a larger score",
             own, np.exp(m - own) * total + of_tile.sum(axis=1, keepdims=True),
             np.exp(m - own) * o + of_tile @ v),
            ("the tile is exponentiated with its own maximum: e^(s - new m), new m of all tiles "
             "so far", new, shrink * total + of_tile.sum(axis=1, keepdims=True),
             shrink * o + of_tile @ v),
            ("this is the old m: return the new one", m, *right[1:]),
            ("o is divided by total here: divide only once, after the last tile",
             new, right[1], right[2] / right[1]),
            ("o is divided by total here: divide only once, after the last tile",
             new, right[1], shrink * o + values / more),
            ("one maximum for all rows: each row has its own, axis 1", everywhere,
             np.exp(m - everywhere) * total + np.exp(s - everywhere).sum(axis=1, keepdims=True)),
            ("no maximum is subtracted: e^s overflows for large scores. Exponentiate s - new m",
             new, total + bare.sum(axis=1, keepdims=True)),
            ("the tile is added before the sums are scaled, so it is scaled, too",
             new, shrink * (total + more), shrink * (o + values)),
        ), bound)


# -- 29b

# {name: (queries, keys, the keys of the tile, E, causal)}
PAIRS = {
    "one tile has all keys": (5, 4, slice(0, 4), 3, False),
    "the first keys": (6, 9, slice(0, 4), 5, False),
    "the last keys, a short tile": (7, 11, slice(8, 11), 2, False),
    "one key": (4, 6, slice(3, 4), 4, False),
    "causal, on the diagonal": (8, 8, slice(3, 6), 3, True),
    "large scores": (5, 12, slice(4, 10), 16, False),
}


def pair_of(name):
    """Returns (s, q, k, v, o, lse, go) of the tile, and its right gradients (gq, gk, gv)."""
    n_queries, n_keys, keys, width, causal = PAIRS[name]
    q, go = draw(301, 2, n_queries, width)
    k, v = draw(302, 2, n_keys, width)
    if name == "large scores":
        q *= 40
    s = q @ k.T / np.sqrt(width)
    if causal:
        s[np.triu_indices(n_queries, 1)] = -np.inf
    top = s.max(axis=1, keepdims=True)
    lse = top + np.log(np.exp(s - top).sum(axis=1, keepdims=True))
    p = np.exp(s - lse)
    o = p @ v
    gp = go @ v.T
    # This is the derivative of softmax over all keys. D comes from its definition, and not from o.
    gs = (p * (gp - (p * gp).sum(axis=1, keepdims=True)))[:, keys]
    right = gs @ k[keys] / np.sqrt(width), gs.T @ q / np.sqrt(width), p[:, keys].T @ go
    return (s[:, keys].copy(), q, k[keys].copy(), v[keys].copy(), o, lse, go), right


def gradients(module, name):
    """Returns ((gq, gk, gv), True if no argument was changed), or a text if it is no triple."""
    arguments, _ = pair_of(name)
    before = [x.copy() for x in arguments]
    with np.errstate(all="ignore"):
        result = module.tile_gradients(*arguments)
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        return kind_of(result)
    same = all(np.array_equal(a, b) for a, b in zip(arguments, before, strict=True))
    return tuple(result), same


def grade_29b(student):
    """tile_gradients: the part of a tile in the gradients of q, k and v."""
    for name, (n_queries, n_keys, keys, _, _) in PAIRS.items():
        n_tile = keys.stop - keys.start
        what = f"{name} ({n_tile} of {n_keys} keys, {n_queries} queries)"
        found = student.run(gradients, name)
        if isinstance(found, str):
            raise Wrong(f"{what}: wanted (gq, gk, gv), three arrays; got {found}")
        got, same = found
        arguments, right = pair_of(name)
        for x, wanted, part in zip(got, right, ("gq", "gk", "gv"), strict=True):
            _check_array(x, wanted.shape, float, f"{what}: {part}")
        cause = _cause_of_gradients(got, *arguments)
        for x, wanted, part in zip(got, right, ("gq", "gk", "gv"), strict=True):
            # float64 sums of up to 16 products
            _check_values(x, wanted, 1e-9, f"{what}: {part}", cause)
        if not same:
            raise Wrong(f"{what}: an argument was changed. Make new arrays, because the next tile "
                        "still needs the old ones")
        yield what


def _cause_of_gradients(got, s, q, k, v, o, lse, go):
    scale = q.shape[1] ** -0.5
    with np.errstate(all="ignore"):
        p = np.exp(s - lse)
        own = np.exp(s - s.max(axis=1, keepdims=True))
        own = np.where(np.isnan(own), 0, own)
        own_p = own / own.sum(axis=1, keepdims=True)
    gp = go @ v.T
    d = (go * o).sum(axis=1, keepdims=True)

    def with_gs(gs, factor=scale, weights=p):
        return gs @ k * factor, gs.T @ q * factor, weights.T @ go

    right = with_gs(p * (gp - d))
    return _first_cause(got, (
        ("D is computed from the keys of this tile only: it is a sum over all keys, and the row "
         "sum of gO * O is this sum", *with_gs(p * (gp - (p * gp).sum(axis=1, keepdims=True)))),
        ("D is missing: gS = P * (gP - D)", *with_gs(p * gp)),
        ("D is added: gS = P * (gP - D)", *with_gs(p * (gp + d))),
        ("D is subtracted after the product: gS = P * (gP - D), with brackets",
         *with_gs(p * gp - d)),
        ("D is a mean over the row, but should be a sum", *with_gs(p * (gp - d / q.shape[1]))),
        ("D is one number for all rows: sum over axis 1, and keep the axis",
         *with_gs(p * (gp - d.sum()))),
        ("the weights are a softmax of this tile only: P = e^(s - lse), lse of all keys",
         *with_gs(own_p * (gp - d), weights=own_p)),
        ("P is e^s: subtract lse first", *with_gs(np.exp(s) * (gp - d), weights=np.exp(s))),
        ("1 / sqrt(E) is missing in gQ and gK: the scores have it", *with_gs(p * (gp - d), 1.0)),
        ("1 / sqrt(E) is missing in gQ: the scores have it", right[0] / scale, *right[1:]),
        ("1 / sqrt(E) is missing in gK: the scores have it", right[0], right[1] / scale, right[2]),
        ("gV is computed from gS: it is P^T gO", *right[:2], (p * (gp - d)).T @ go),
        ("gQ and gK are computed from gP: use gS", *with_gs(gp)),
        ("gQ and gK are computed from P: use gS", *with_gs(p)),
        ("P has the scale twice: s has it already", *with_gs(np.exp(s * scale - lse)
                                                               * (gp - d),
                                                               weights=np.exp(s * scale - lse))),
    ), 1e-9)


# -- 29c

# (queries, keys): below, at and above 16 rows a block and 8 keys a tile
SIZES = [(5, 3), (16, 8), (37, 21), (20, 40)]
WIDTH = 8


def tensors(n_queries, n_keys):
    """Returns (q, k, v) in float32. Later keys have larger scores, so the maximum changes."""
    q, k, v = draw(303, n_queries, WIDTH), draw(304, n_keys, WIDTH), draw(305, n_keys, WIDTH)
    k = k * np.linspace(0.5, 3, n_keys)[:, None]
    return [np.ascontiguousarray(x, np.float32) for x in (q, k, v)]


def attend(module, n_queries, n_keys):
    """Returns (o, lse, errors as text, loads of k, loads of v)."""
    q, k, v = tensors(n_queries, n_keys)
    o, lse = np.full_like(q, np.nan), np.full(n_queries, np.nan, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        report = cuda.check(
            module.source(folder, module.KERNEL), -(-n_queries // 16), 16,
            (o, lse, q, k, v, np.float32(WIDTH**-0.5), n_queries, n_keys), name="attend",
            outputs=["o", "lse"])
    errors = [f"{f}\n    {f.remedy}" for f in report.errors]
    return o, lse, errors, report.ledger["k"].loads, report.ledger["v"].loads


def by_tiles(q, k, v, way=""):
    """Returns (o, lse) in float64 as the kernel computes them, with 8 keys at a time.

    way: the name of a mistake to make, or ""."""
    q, k, v = (x.astype(float) for x in (q, k, v))
    top, total, o = np.full((len(q), 1), -1e30), np.zeros((len(q), 1)), np.zeros_like(q)
    for first in range(0, len(k), 8):
        keys, values = k[first : first + 8], v[first : first + 8]
        s = q @ keys.T * WIDTH**-0.5
        new = np.maximum(top, s.max(axis=1, keepdims=True))
        shrink = np.exp(top - new)
        p = np.exp(s - new)
        if way == "last":
            total, o = 0, 0
        added = p.sum(axis=1, keepdims=True)
        total = total * (1 if way in ("total", "neither") else shrink) + added
        o = o * (1 if way in ("sum", "neither") else shrink) + p @ values
        top = new
    return o / total, (top + np.log(total))[:, 0]


def grade_29c(student):
    """the kernel's tile: right values in every order of threads, and each number fetched once."""
    for n_queries, n_keys in SIZES:
        what = f"{n_queries} queries, {n_keys} keys"
        o, lse, errors, of_k, of_v = student.run(attend, n_queries, n_keys)
        if errors:
            if any("unwritten shared memory" in error for error in errors):
                errors.append("The last tile may be shorter: it has n keys, and not KEYS")
            raise Wrong(f"{what}:\n" + "\n".join(errors))
        q, k, v = tensors(n_queries, n_keys)
        wanted, wanted_lse = by_tiles(q, k, v)
        cause = _first_cause((o, lse), [(text, *by_tiles(q, k, v, way)) for text, way in (
            ("neither sum is scaled to the new maximum: multiply by expf(top - new top)",
             "neither"),
            ("total is not scaled to the new maximum: multiply it by expf(top - new top)",
             "total"),
            ("sum is not scaled to the new maximum: multiply it by expf(top - new top)", "sum"),
            ("these are the keys of the last tile only: total and sum continue from tile to tile",
             "last"),
        )], 1e-4)
        # The bound is for float32. Scores are up to 20, so exponentials have errors of 20 eps.
        _check_values(o, wanted, 1e-4, f"{what}: o", cause)
        _check_values(lse, wanted_lse, 1e-4, f"{what}: lse", cause)
        most = n_keys * WIDTH * -(-n_queries // 16)
        for name, loads in (("k", of_k), ("v", of_v)):
            if loads > most:
                raise Wrong(f"{what}: {loads:,} loads of {name}, but {most:,} are enough: the "
                            "block has fetched each number once into kt and vt")
        yield f"{what}: values, three orders, loads of k and v"


# Parts of the answers below.
_NEW = """
new_m = np.maximum(m, s.max(axis=1, keepdims=True))
shrink = np.exp(m - new_m)
p = np.exp(s - new_m)
"""
_SUMS = "return new_m, shrink * total + p.sum(axis=1, keepdims=True), shrink * o + p @ v"
_P = """
scale = q.shape[1] ** -0.5
p = np.exp(s - lse)
gp = go @ v.T
"""
_D = "d = (go * o).sum(axis=1, keepdims=True)\n"
_GS = "gs = p * (gp - d)\n"
_ALL = "return gs @ k * scale, gs.T @ q * scale, p.T @ go"
_SCORES = """
float s[KEYS], new_top = top;
for (int j = 0; j < n; ++j) {
  s[j] = 0;
  for (int c = 0; c < E; ++c) s[j] += row[c] * kt[j][c];
  new_top = fmaxf(new_top, s[j]);
}
"""
_SHRINK = """
const float shrink = expf(top - new_top);
total *= shrink;
for (int c = 0; c < E; ++c) sum[c] *= shrink;
"""
_ADD = """
for (int j = 0; j < n; ++j) {
  const float p = expf(s[j] - new_top);
  total += p;
  for (int c = 0; c < E; ++c) sum[c] += p * vt[j][c];
}
top = new_top;
"""
_BARRIER = "__syncthreads();\n"
# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "29a": {
        "no rescale": (
            _NEW + "return new_m, total + p.sum(axis=1, keepdims=True), o + p @ v",
            "neither sum is scaled",
        ),
        "the total is not rescaled": (
            _NEW + _SUMS.replace("shrink * total", "total"),
            "total still has the old m in it",
        ),
        "o is not rescaled": (
            _NEW + _SUMS.replace("shrink * o", "o"),
            "o still has the old m in it",
        ),
        "rescaled upside down": (
            _NEW.replace("np.exp(m - new_m)", "np.where(np.isinf(m), 0, np.exp(new_m - m))")
            + _SUMS,
            "and not e^(new m - old m)",
        ),
        "the maximum of the tile alone": (
            _NEW.replace("np.maximum(m, s.max(axis=1, keepdims=True))",
                         "s.max(axis=1, keepdims=True)") + _SUMS,
            "m is the largest of this tile only",
        ),
        "the tile's own maximum inside": (
            _NEW.replace("np.exp(s - new_m)", "np.exp(s - s.max(axis=1, keepdims=True))") + _SUMS,
            "exponentiated with its own maximum",
        ),
        "divided in each tile": (
            _NEW + "total = shrink * total + p.sum(axis=1, keepdims=True)\n"
            "return new_m, total, (shrink * o + p @ v) / total",
            "divide only once, after the last tile",
        ),
        "the old maximum is returned": (
            _NEW + _SUMS.replace("new_m,", "m,"),
            "return the new one",
        ),
        "one maximum for all rows": (
            _NEW.replace("s.max(axis=1, keepdims=True)", "s.max()") + _SUMS,
            "each row has its own",
        ),
        "the axis is lost": (
            _NEW + _SUMS.replace("p.sum(axis=1, keepdims=True)", "p.sum(axis=1)"),
            "total should have the shape",
        ),
        "two results": (
            _NEW + "return new_m, shrink * total + p.sum(axis=1, keepdims=True)",
            "wanted (m, total, o)",
        ),
        "o is nothing": (
            _NEW + "return new_m, shrink * total + p.sum(axis=1, keepdims=True), None",
            "o should be an array of shape",
        ),
    },
    "29b": {
        "D from the tile": (
            _P + "d = (p * gp).sum(axis=1, keepdims=True)\n" + _GS + _ALL,
            "D is computed from the keys of this tile only",
        ),
        "no D": (_P + "gs = p * gp\n" + _ALL, "D is missing"),
        "D is added": (_P + _D + "gs = p * (gp + d)\n" + _ALL, "D is added"),
        "no brackets": (_P + _D + "gs = p * gp - d\n" + _ALL, "with brackets"),
        "one D for all rows": (
            _P + "d = (go * o).sum()\n" + _GS + _ALL,
            "D is one number for all rows",
        ),
        "softmax of the tile": (
            _P.replace("np.exp(s - lse)", "np.exp(s - s.max(axis=1, keepdims=True))")
            + "p = p / p.sum(axis=1, keepdims=True)\n" + _D + _GS + _ALL,
            "a softmax of this tile only",
        ),
        "no scale": (
            _P + _D + _GS + "return gs @ k, gs.T @ q, p.T @ go",
            "1 / sqrt(E) is missing in gQ and gK",
        ),
        "no scale in gK": (
            _P + _D + _GS + "return gs @ k * scale, gs.T @ q, p.T @ go",
            "1 / sqrt(E) is missing in gK",
        ),
        "gV from gS": (
            _P + _D + _GS + "return gs @ k * scale, gs.T @ q * scale, gs.T @ go",
            "gV is computed from gS",
        ),
        "the wrong order": (
            _P + _D + _GS + "return gs.T @ q * scale, gs @ k * scale, p.T @ go",
            "gq should have the shape",
        ),
        "nothing is returned": (_P + _D + _GS, "wanted (gq, gk, gv)"),
        "an argument is changed": (
            _P + "go *= o\nd = go.sum(axis=1, keepdims=True)\ngo /= o\n" + "v *= 2\nv /= 3\n"
            + _GS + _ALL,
            "an argument was changed",
        ),
    },
    "29c": {
        "no barrier before": (_SCORES + _SHRINK + _ADD + _BARRIER, "data race"),
        "no barrier behind": (_BARRIER + _SCORES + _SHRINK + _ADD, "data race"),
        "threads outside leave": (
            "if (i < n_queries) {\n" + _BARRIER + _SCORES + _SHRINK + _ADD + _BARRIER + "}\n",
            "divergent barrier",
        ),
        "no rescale": (
            _BARRIER + _SCORES + _ADD + _BARRIER,
            "neither sum is scaled to the new maximum",
        ),
        "the total is not rescaled": (
            _BARRIER + _SCORES + _SHRINK.replace("total *= shrink;\n", "") + _ADD + _BARRIER,
            "total is not scaled to the new maximum",
        ),
        "the sum is not rescaled": (
            _BARRIER + _SCORES
            + _SHRINK.replace("for (int c = 0; c < E; ++c) sum[c] *= shrink;\n", "") + _ADD
            + _BARRIER,
            "sum is not scaled to the new maximum",
        ),
        "keys that are not there": (
            _BARRIER + (_SCORES + _SHRINK + _ADD).replace("j < n;", "j < KEYS;") + _BARRIER,
            "it has n keys, and not KEYS",
        ),
        "from memory": (
            _BARRIER + _SCORES.replace("kt[j][c]", "k[(first + j) * E + c]") + _SHRINK + _ADD
            + _BARRIER,
            "loads of k",
        ),
    },
}
