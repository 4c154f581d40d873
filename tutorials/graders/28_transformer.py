"""Grades work/28_transformer.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

import minidl
from minidl.course.grade import Wrong, apart, kind_of

SEED = 0  # `minidl check --student NAME` sets another one for each student


# -- 28a

# (shape (..., T, E), the first position, dtype)
TURNS = [((2, 2), 0, "float64"), ((1, 5, 4), 3, "float64"), ((2, 3, 6), 0, "float32"),
         ((2, 1, 7, 8), 40, "float64"), ((3, 2, 5, 16), 2, "float32")]


def arrays(shape, dtype):
    """Returns (x, gy)."""
    return minidl.Generator(SEED + 281).normal(2, *shape).astype(dtype)


def turned(x, first, sign=1, power=2, base=10000.0, pairs="halves"):
    """Returns x turned, by complex numbers: (a + ib) e^(i angle).

    With other options x is turned in a wrong way."""
    half = x.shape[-1] // 2
    theta = base ** (-power * np.arange(half) / (2 * half))
    angle = (first + np.arange(x.shape[-2]))[:, None] * theta
    if pairs == "neighbours":
        z = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(sign * 1j * angle)
        return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(sign * 1j * angle)
    return np.concatenate([z.real, z.imag], axis=-1)


def turn(module, shape, first, dtype):
    """Returns (y, gx, (True if x was not changed, the same for gy)).

    Returns a text with the kind of the result if it is no pair (y, backward)."""
    x, gy = arrays(shape, dtype)
    x_before, gy_before = x.copy(), gy.copy()
    result = module.rope(x, first)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return kind_of(result)
    y, backward = result
    if not callable(backward):
        return f"a pair whose second is {kind_of(backward)}"
    y = y.copy() if isinstance(y, np.ndarray) else y
    gx = backward(gy)
    same = bool(np.array_equal(x, x_before)), bool(np.array_equal(gy, gy_before))
    return y, gx, same


def grade_28a(student):
    """rope: each point turned by its angle, and a gradient that is turned back."""
    for shape, first, dtype in TURNS:
        *_, n_tokens, width = shape
        what = f"{n_tokens} tokens from position {first}, E = {width}, {dtype}"
        result = student.run(turn, shape, first, dtype)
        if isinstance(result, str):
            raise Wrong(f"{what}: wanted (y, backward), an array and a function of gy; got "
                        f"{result}")
        y, gx, (x_same, gy_same) = result
        x, gy = arrays(shape, dtype)
        _check_array(y, x, f"{what}: y")
        _check_array(gx, gy, f"{what}: the gradient of x")
        # The bound of float32 is for two products of numbers near 4. Each product is rounded.
        bound = 1e-10 if dtype == "float64" else 1e-5
        _check_values(y, turned(x.astype(float), first), bound, f"{what}: y",
                      _cause_of_y(y, x, first, bound))
        _check_values(gx, turned(gy.astype(float), first, sign=-1), bound,
                      f"{what}: y is right, the gradient of x", _cause_of_gx(gx, gy, first, bound))
        for name, same in (("x", x_same), ("gy", gy_same)):
            if not same:
                raise Wrong(f"{what}: {name} was changed. Make a new array, because other code "
                            "still needs the old one")
        yield f"{what}: y, and the gradient of x"


def _check_array(got, like, name):
    if not isinstance(got, np.ndarray):
        raise Wrong(f"{name} should be an array of shape {like.shape}, is "
                    f"{kind_of(got)}")
    if got.shape != like.shape:
        raise Wrong(f"{name} should have the shape {like.shape}, has {got.shape}")
    if got.dtype != like.dtype:
        raise Wrong(f"{name} should be {like.dtype} like its input, is {got.dtype}. Angles are "
                    "float64: cast the result before you return it")


def _check_values(got, wanted, bound, name, cause):
    wrong = np.argwhere(~(np.abs(got - wanted) < bound))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        right, is_now = apart(wanted[at], got[at])
        raise Wrong(f"{name}{list(at)} should be {right}, is {is_now}; {len(wrong)} "
                    f"of {wanted.size} are wrong{cause}")


def _first_cause(got, causes, bound):
    """Returns the hint of the first mistake that gives `got`, or ""."""
    for text, wrong in causes:
        if np.abs(got - wrong).max() < bound:
            return f": {text}"
    return ""


def _cause_of_y(y, x, first, bound):
    x = x.astype(float)
    half = x.shape[-1] // 2
    right = turned(x, first)
    theta = 10000.0 ** (-np.arange(half) / half)
    angle = (first + np.arange(x.shape[-2]))[:, None] * theta
    new_a = right[..., :half]
    one_sided = np.concatenate([new_a, x[..., half:] * np.cos(angle) + new_a * np.sin(angle)], -1)
    moved = np.concatenate([x[..., half:], x[..., :half]], -1)
    no_minus = x * np.tile(np.cos(angle), 2) + moved * np.tile(np.sin(angle), 2)
    return _first_cause(y, (
        ("it is x, unchanged", x),
        ("it is turned by the negative angles: a' = a cos - b sin", turned(x, first, sign=-1)),
        ("neighbours are used as points: a is the first half of a head, b is the second half",
         turned(x, first, pairs="neighbours")),
        ("the positions start at 0: token t has position first + t", turned(x, 0)),
        ("the positions start at 1: token t has position first + t", turned(x, first + 1)),
        ("the exponent is half as large as it should be: theta_i = 10000^(-2i/E), i = 0 to E/2 - 1",
         turned(x, first, power=1)),
        ("the exponent is twice as large as it should be: theta_i = 10000^(-2i/E)",
         turned(x, first, power=4)),
        ("the angles grow from point to point: the exponent is negative",
         turned(x, first, power=-2)),
        ("all points turn by the same angle: point i turns by the position times theta_i",
         turned(x, first, power=0)),
        ("b' is computed from the new a: keep the old a until both are computed", one_sided),
        ("a' = a cos + b sin: there is a minus in front of b sin", no_minus),
    ), bound)


def _cause_of_gx(gx, gy, first, bound):
    gy = gy.astype(float)
    return _first_cause(gx, (
        ("it is gy, unchanged. The chain rule gives R^T gy, and R^T turns back", gy),
        ("it is turned by the same angles as x. R^T = R^-1 turns by the negative angles",
         turned(gy, first)),
        ("it is turned back as if the first token had position 0: use the angles of forward",
         turned(gy, 0, sign=-1)),
        ("it has the wrong sign: only the angles are negative", -turned(gy, first, sign=-1)),
        ("it has the wrong sign: only the angles are negative", -turned(gy, first)),
        ("it is multiplied by x: y is linear in x, so x is not in its gradient",
         gy * turned(np.ones_like(gy), first, sign=-1)),
    ), bound)


# -- 28b

# {name: (rows, top_p)}. The numbers of a row are counted in 64ths, so that their sums are exact.
ROWS = {
    "the example of the plain page, in 64ths": ([[32, 16, 10, 6]], 0.7),
    "the most likely token reaches p exactly": ([[8, 32, 16, 8]], 0.5),
    "two tokens reach p exactly, two rows": ([[8, 32, 16, 8], [40, 8, 4, 12]], 0.75),
    "equal probabilities": ([[16, 16, 16, 16], [8, 24, 8, 24]], 0.6),
    "the last places are equal, too": ([[20, 4, 20, 4, 8, 8]], 0.7),
    "p = 1, a token has 0": ([[0, 1, 63], [20, 24, 20]], 1.0),
    "a tiny p, three rows": ([[16, 32, 16], [16, 16, 32], [62, 1, 1]], 1e-9),
    "one token": ([[64], [64]], 0.3),
}
# (rows, tokens, top_p, dtype) of random rows
DRAWN = [(1, 300, 0.9, "float64"), (7, 33, 0.4, "float64"), (4, 50, 0.75, "float32")]


def rows_of(name):
    return np.array(ROWS[name][0]) / 64


def drawn(n, size, dtype):
    z = 2 * minidl.Generator(SEED + 282).normal(n, size).astype(float)
    p = np.exp(z)
    return (p / p.sum(axis=1, keepdims=True)).astype(dtype)


def kept_of_rows(module, name):
    return _kept(module, rows_of(name), ROWS[name][1])


def kept_of_drawn(module, n, size, top_p, dtype):
    return _kept(module, drawn(n, size, dtype), top_p)


def _kept(module, p, top_p):
    """Returns (the result of nucleus, True if p was not changed)."""
    before = p.copy()
    with np.errstate(all="ignore"):  # 0 / 0 is judged below, in words
        result = module.nucleus(p, top_p)
    return result, bool(np.array_equal(p, before))


def wanted_of(p, top_p):
    """Returns the right answer in float64, computed by a loop."""
    result = np.zeros(p.shape)
    for row, out in zip(p.astype(float), result, strict=True):
        together = 0.0
        for i in sorted(range(len(row)), key=lambda i: -row[i]):  # sorted keeps the order of equals
            if together < top_p:
                out[i] = row[i]
            together += row[i]
        out /= out.sum()
    return result


def grade_28b(student):
    """nucleus: the fewest most likely tokens that reach top_p, with the sum 1."""
    for name, (_, top_p) in ROWS.items():
        p = rows_of(name)
        _check_kept(*student.run(kept_of_rows, name), p, top_p, f"{name} (top_p {top_p:g})")
        yield name
    for n, size, top_p, dtype in DRAWN:
        p = drawn(n, size, dtype)
        what = f"{n} rows of {size} tokens, {dtype}, top_p {top_p:g}"
        _check_kept(*student.run(kept_of_drawn, n, size, top_p, dtype), p, top_p, what)
        yield what


def _check_kept(got, p_same, p, top_p, what):
    if not isinstance(got, np.ndarray):
        raise Wrong(f"{what}: wanted an array of shape {p.shape}, got "
                    f"{kind_of(got)}")
    if got.shape != p.shape:
        raise Wrong(f"{what}: wanted the shape of p, {p.shape}, got {got.shape}")
    if not p_same:
        raise Wrong(f"{what}: p was changed. Make a new array")
    if got.dtype != p.dtype:
        raise Wrong(f"{what}: wanted the dtype of p, {p.dtype}; got {got.dtype}")
    if np.isnan(got).any():
        raise Wrong(f"{what}: a row has no token left, and 0 / 0 is nan. The most likely token "
                    "always stays: the sum before it is 0, which is less than top_p")
    wanted = wanted_of(p, top_p)
    stays = wanted > 0
    wrong = np.flatnonzero(((got > 0) != stays).any(axis=1))
    if len(wrong):
        row = int(wrong[0])
        raise Wrong(f"{what}: of row {row}, {_text(p[row])}, the tokens {_places(stays[row])} "
                    f"should stay; got {_places(got[row] > 0)}{_cause_of_kept(got, p, top_p)}")
    # The bound of float32 is for a sum of up to 50 numbers, and a division.
    bound = 1e-12 if p.dtype == np.float64 else 1e-6
    wrong = np.argwhere(~(np.abs(got - wanted) < bound))
    if len(wrong):
        row, i = (int(k) for k in wrong[0])
        raise Wrong(f"{what}: the right tokens stay, but p[{row}, {i}] should be "
                    f"{wanted[row, i]:.6g}, is {got[row, i]:.6g}"
                    + _first_cause(got, _causes_of_sums(p, stays), bound))


def _causes_of_sums(p, stays):
    left = np.where(stays, p, 0)
    e = np.where(stays, np.exp(p), 0)
    return (
        ("divide by the sum of the tokens that stay", left),
        ("divide each row by its own sum, not by the sum of all rows", left / left.sum()),
        ("all tokens that stay have equal probabilities; keep the ratios of p",
         stays / stays.sum(axis=1, keepdims=True)),
        ("p holds probabilities already: use no softmax, only divide",
         e / e.sum(axis=1, keepdims=True)),
    )


def _text(row):
    return "(" + ", ".join(f"{x:.3g}" for x in row[:6]) + (", ..." if len(row) > 6 else "") + ")"


def _places(mask):
    places = np.flatnonzero(mask).tolist()
    return ", ".join(map(str, places[:8])) + (", ..." if len(places) > 8 else "") or "none"


def _cause_of_kept(got, p, top_p):
    """Returns the hint of a known mistake in the choice, or ""."""
    kept = got > 0
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p.astype(float), order, axis=1)
    sums = np.cumsum(ordered, axis=1)

    def back(choice, order=order):
        """Takes `choice` in the order of probabilities. Returns it in the order of tokens."""
        result = np.zeros(p.shape, bool)
        np.put_along_axis(result, order, choice, axis=1)
        return result & (p > 0)

    before = sums - ordered
    stays = before < top_p
    least = np.argsort(p, axis=1, kind="stable")
    turned_order = least[:, ::-1]
    in_turn = np.cumsum(np.take_along_axis(p.astype(float), least, axis=1), axis=1)
    own_order = np.cumsum(p.astype(float), axis=1)
    last = np.where(stays, ordered, np.inf).min(axis=1, keepdims=True)
    of_turned = np.take_along_axis(p.astype(float), turned_order, axis=1)
    for hint, wrong in (
        ("the token with which the sum reaches top_p stays, too: compare the sum of the tokens "
         "before it", back(sums <= top_p)),
        ("the token with which the sum reaches top_p stays, too: compare the sum of the tokens "
         "before it", back(sums < top_p)),
        ("the most likely token stays, but also the token with which the sum reaches top_p",
         back((sums <= top_p) | (np.arange(p.shape[1]) == 0))),
        ("one too many: a token is removed if the tokens before it reach top_p already",
         back(before <= top_p)),
        ("if tokens are equal, keep only the number that is needed, the smaller token numbers "
         "first: choose by place, not by size", (p >= last) & (p > 0)),
        ("if tokens are equal, the smaller token number comes first: argsort of -p, "
         'kind="stable"', back(np.cumsum(of_turned, axis=1) - of_turned < top_p, turned_order)),
        ("the choice is still in the order of probabilities: put it back in the order of tokens",
         stays & (p > 0)),
        ("the tokens are taken in their own order; take the most likely first",
         (own_order - p < top_p) & (p > 0)),
        ("the least likely come first: argsort orders from small to large, so order -p",
         back(in_turn - np.take_along_axis(p.astype(float), least, axis=1) < top_p, least)),
        ("top_p is a sum to reach, not the smallest probability of a token", p >= top_p),
        ("all rows have the order of the first: each row has its own", _by_first_order(p, top_p)),
        ("the sum continues from row to row: begin at 0 in each row", _over_rows(p, top_p)),
    ):
        if np.array_equal(kept, wrong):
            return f": {hint}"
    return ""


def _by_first_order(p, top_p):
    order = np.argsort(-p[0], kind="stable")
    ordered = p[:, order].astype(float)
    result = np.zeros(p.shape, bool)
    result[:, order] = np.cumsum(ordered, axis=1) - ordered < top_p
    return result & (p > 0)


def _over_rows(p, top_p):
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p.astype(float), order, axis=1)
    sums = np.cumsum(ordered).reshape(p.shape)
    result = np.zeros(p.shape, bool)
    np.put_along_axis(result, order, sums - ordered < top_p, axis=1)
    return result & (p > 0)


# Parts of the answers below.
_ANGLES = """
half = x.shape[-1] // 2
theta = 10000.0 ** (-np.arange(half) / half)
angles = (first + np.arange(x.shape[-2]))[:, None] * theta
"""
_TURNED = """
def turned(x, angles):
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

"""
_BACK = "return turned(x, angles), lambda gy: turned(gy, -angles)"
_ORDER = """
order = np.argsort(-p, axis=-1, kind="stable")
ordered = np.take_along_axis(p, order, axis=-1)
before = np.cumsum(ordered, axis=-1) - ordered
"""
_PUT = """
kept = np.zeros_like(p)
np.put_along_axis(kept, order, np.where(before < top_p, ordered, 0), axis=-1)
"""
_DIVIDE = "return kept / kept.sum(axis=-1, keepdims=True)"
# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "28a": {
        "neighbours are points": (
            _ANGLES + _TURNED.replace("x[..., :half], x[..., half:]", "x[..., ::2], x[..., 1::2]")
            .replace("np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)",
                     "np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)")
            + _BACK,
            "neighbours are used as points",
        ),
        "the other direction": (
            _ANGLES + _TURNED + "return turned(x, -angles), lambda gy: turned(gy, angles)",
            "turned by the negative angles",
        ),
        "the gradient is turned on": (
            _ANGLES + _TURNED + "return turned(x, angles), lambda gy: turned(gy, angles)",
            "R^T = R^-1 turns by the negative angles",
        ),
        "the gradient as it came": (
            _ANGLES + _TURNED + "return turned(x, angles), lambda gy: gy",
            "it is gy, unchanged",
        ),
        "positions from 0": (
            _ANGLES.replace("first + ", "") + _TURNED + _BACK,
            "the positions start at 0",
        ),
        "half of the exponent": (
            _ANGLES.replace("/ half", "/ x.shape[-1]") + _TURNED + _BACK,
            "the exponent is half as large",
        ),
        "one angle for all points": (
            _ANGLES.replace("theta = 10000.0 ** (-np.arange(half) / half)", "theta = np.ones(half)")
            + _TURNED + _BACK,
            "all points turn by the same angle",
        ),
        "float64 comes out": (
            _ANGLES + _TURNED.replace(".astype(x.dtype)", "") + _BACK,
            "cast the result before you return it",
        ),
        "in place": (
            _ANGLES + """
a, b = x[..., :half], x[..., half:]
a[...] = a * np.cos(angles) - b * np.sin(angles)
b[...] = b * np.cos(angles) + a * np.sin(angles)
return x, lambda gy: gy
""",
            "b' is computed from the new a",
        ),
        "x is overwritten": (
            _ANGLES + _TURNED + "x[...] = turned(x, angles)\n"
            "return x, lambda gy: turned(gy, -angles)",
            "x was changed",
        ),
        "no minus": (
            _ANGLES + _TURNED.replace("a * cos - b * sin", "a * cos + b * sin") + _BACK,
            "there is a minus in front of b sin",
        ),
        "y alone": (
            _ANGLES + _TURNED + "return turned(x, angles)",
            "wanted (y, backward)",
        ),
        "nothing is returned": (
            _ANGLES + _TURNED + "turned(x, angles)",
            "got None: is there a return?",
        ),
        "no gradient is returned": (
            _ANGLES + _TURNED + "return turned(x, angles), lambda gy: None",
            "the gradient of x should be an array",
        ),
    },
    "28b": {
        "the token that reaches p goes": (
            _ORDER.replace("- ordered", "") + _PUT.replace("before < top_p", "before <= top_p")
            + _DIVIDE,
            "the token with which the sum reaches top_p stays, too",
        ),
        "a margin for rounding": (
            _ORDER + _PUT.replace("before < top_p", "before < top_p - 1e-6") + _DIVIDE,
            "a row has no token left",
        ),
        "one too many": (
            _ORDER + _PUT.replace("before < top_p", "before <= top_p") + _DIVIDE,
            "one too many",
        ),
        "all equals stay": (
            _ORDER + """
last = np.where(before < top_p, ordered, np.inf).min(axis=-1, keepdims=True)
kept = np.where(p >= last, p, 0)
""" + _DIVIDE,
            "choose by place, not by size",
        ),
        "the larger number of equals first": (
            _ORDER.replace('np.argsort(-p, axis=-1, kind="stable")',
                           'np.argsort(p, axis=-1, kind="stable")[:, ::-1]') + _PUT + _DIVIDE,
            "if tokens are equal, the smaller token number comes first",
        ),
        "not put back": (
            _ORDER + "kept = np.where(before < top_p, p, 0)\n" + _DIVIDE,
            "put it back in the order of tokens",
        ),
        "the least likely first": (
            _ORDER.replace("-p", "p") + _PUT + _DIVIDE,
            "so order -p",
        ),
        "not divided": (_ORDER + _PUT + "return kept", "divide by the sum of the tokens that stay"),
        "divided by the sum of all rows": (
            _ORDER + _PUT + "return kept / kept.sum()",
            "by its own sum, not by the sum of all rows",
        ),
        "the order of the first row": (
            """
order = np.argsort(-p[0], kind="stable")
ordered = p[:, order]
before = np.cumsum(ordered, axis=-1) - ordered
kept = np.zeros_like(p)
kept[:, order] = np.where(before < top_p, ordered, 0)
""" + _DIVIDE,
            "each row has its own",
        ),
        "p is changed": (
            _ORDER + "np.put_along_axis(p, order, np.where(before < top_p, ordered, 0), axis=-1)\n"
            "kept = p\n" + _DIVIDE,
            "p was changed",
        ),
        "a mask": (
            _ORDER + _PUT + "return kept > 0",
            "wanted the dtype of p, float64; got bool",
        ),
        "one number": (_ORDER + _PUT + "return kept.sum()", "wanted an array of shape"),
    },
}
