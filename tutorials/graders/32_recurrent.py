"""Grades work/32_recurrent.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.course.grade import Wrong, kind_of

SEED = 0  # `minidl check --student NAME` sets another one for each student


# -- 32a

SHAPES = [(1, 1), (2, 3), (5, 4), (3, 1), (0, 2)]  # (N, H)


def inputs(n, size):
    """Returns (gh, h, before, w, gw) in float64. gw already has the parts of other steps."""
    draw = np.random.default_rng([SEED + 32, n, size])
    before, x, gh = draw.normal(size=(3, n, size))
    w, gw = draw.normal(size=(2, size, size))
    return gh, np.tanh(x + before @ w.T), before, w, gw


def one_step(module, n, size):
    """Returns (the result, gw, names of arguments that were changed)."""
    given = inputs(n, size)
    result = module.step_back(*given)
    names = "gh", "h", "before", "w"
    changed = [name for name, old, new in zip(names, inputs(n, size), given, strict=False)
               if not np.array_equal(old, new)]
    return result, given[4], changed


def grade_32a(student):
    """step_back: the gradients of x and of h_{t-1}, and the sum in gw."""
    for n, size in SHAPES:
        what = f"N = {n}, H = {size}"
        result, gw, changed = student.run(one_step, n, size)
        if changed:
            raise Wrong(f"{what}: {', '.join(changed)} was changed; it belongs to the caller")
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Wrong(f"{what}: wanted two arrays, the gradients of x_t and of h_{{t-1}}; got "
                        f"{kind_of(result)}")
        for name, part in zip(("x_t", "h_{t-1}"), result, strict=True):
            if np.shape(part) != (n, size):
                raise Wrong(f"{what}: the gradient of {name} should have the shape {(n, size)}, "
                            f"got {kind_of(part)}")
            _check_dtype(f"{what}: the gradient of {name}", part)
        _check_step(what, *(np.asarray(part) for part in result), gw, *inputs(n, size))
        yield what


def _check_dtype(what, part):
    dtype = np.asarray(part).dtype
    if dtype != np.float64:
        raise Wrong(f"{what} should be float64 like the arguments, is {dtype}")


def _check_step(what, gx, gb, gw, gh, h, before, w, old):
    slope = 1 - h**2
    want = gh * slope
    if not _close(gx, want):
        for hint, other in (
            ("the slope of tanh is missing: 1 - h^2", gh),
            ("h is the result of tanh already: its slope is 1 - h^2", gh * (1 - np.tanh(h) ** 2)),
            ("the slope is 1 - h^2, not 1 - h", gh * (1 - h)),
            ("the slope is 1 - h^2: this is the slope of sigmoid", gh * h * (1 - h)),
            ("take the slope at h_t, not at h_{t-1}", gh * (1 - before**2)),
            ("the sign is wrong: the gradient is gh (1 - h^2)", -want),
            ("these are the gradients of h_{t-1} and of x_t: x_t comes first", want @ w),
        ):
            if _close(gx, other):
                raise Wrong(f"{what}: the gradient of x_t is wrong: {hint}")
        raise Wrong(f"{what}: the gradient of x_t is off by {np.abs(gx - want).max():.3g}")
    if not _close(gw, old + want.T @ before):
        for hint, other in (
            ("gw did not change: add to it in place, gw += ..., because gw = gw + ... makes a new "
             "array", old),
            ("the part of this step has replaced the others: add to gw", want.T @ before),
            ("its rows and columns are exchanged: w[j, k] gets gx[j] before[k]",
             old + before.T @ want),
            ("the state in the product is h_{t-1}, not h_t", old + want.T @ h),
            ("the slope of tanh is missing: W is inside of tanh, too", old + gh.T @ before),
            ("sum over the rows of a batch: this is their mean",
             old + want.T @ before / max(len(h), 1)),
            ("it is subtracted: add the gradient, this is no step", old - want.T @ before),
        ):
            if _close(gw, other):
                raise Wrong(f"{what}: gw is wrong: {hint}")
        raise Wrong(f"{what}: gw is off by {np.abs(gw - old - want.T @ before).max():.3g}")
    if not _close(gb, want @ w):
        for hint, other in (
            ("W is transposed: forward has before @ w.T, so backward has gx @ w", want @ w.T),
            ("the slope of tanh is missing: take gx, not gh", gh @ w),
            ("the slope of tanh is missing: take gx, not gh. And W is transposed", gh @ w.T),
            ("W is missing: forward multiplies h_{t-1} by W before tanh", want),
            ("gh is added, but the caller adds the loss's gradient at t - 1", want @ w + gh),
            ("the slope is in it twice: take gx @ w", want * slope @ w),
        ):
            if _close(gb, other):
                raise Wrong(f"{what}: the gradient of h_{{t-1}} is wrong: {hint}")
        raise Wrong(f"{what}: the gradient of h_{{t-1}} is off by "
                    f"{np.abs(gb - want @ w).max():.3g}")


def _close(a, b):
    return np.allclose(a, b, rtol=1e-10, atol=1e-12)  # float64, sums of five products


# -- 32b

PAIRS = [(3,), (2, 4), (1,), (0, 3), ()]


def pairs(shape):
    """Returns three pairs of arrays in float64. One a is 0, which removes all earlier steps."""
    draw = np.random.default_rng([SEED + 33, len(shape), *shape])
    found = draw.normal(size=(3, 2, *shape))
    if len(shape) > 1 and found.size:
        found[1, 0, 0] = 0
    return [(np.array(a), np.array(b)) for a, b in found]


def combined(module, shape):
    """Returns the results of combine() in five cases, and True if a pair was changed.

    The cases: the first two pairs; three pairs grouped in both ways; a pair before and after the
    pair that changes nothing."""
    p, q, r = pairs(shape)
    nothing = np.ones(shape), np.zeros(shape)
    two = module.combine(p, q)
    changed = any(not np.array_equal(a, b) for old, new in zip(pairs(shape), (p, q, r), strict=True)
                  for a, b in zip(old, new, strict=True))
    if not isinstance(two, (tuple, list)) or len(two) != 2:
        return two, None, None, None, None, changed
    left = module.combine(module.combine(p, q), r)
    right = module.combine(p, module.combine(q, r))
    return two, left, right, module.combine(p, nothing), module.combine(nothing, p), changed


def grade_32b(student):
    """combine: two steps, one after the other, as one step; in any grouping."""
    for shape in PAIRS:
        what = f"pairs of shape {shape}"
        two, left, right, before, after, changed = student.run(combined, list(shape))
        if changed:
            raise Wrong(f"{what}: a pair was changed. Both belong to the caller: make new arrays")
        if not isinstance(two, (tuple, list)) or len(two) != 2:
            raise Wrong(f"{what}: wanted a pair (a, b); got {kind_of(two)}")
        for name, part in zip("ab", two, strict=True):
            if part is None or np.shape(part) != tuple(shape):
                raise Wrong(f"{what}: {name} should have this shape; got {kind_of(part)}")
            _check_dtype(f"{what}: {name}", part)
        (a1, b1), (a2, b2), _ = pairs(shape)
        h = np.random.default_rng(SEED).normal(size=shape)
        a, b = two
        if not _close(a * h + b, a2 * (a1 * h + b1) + b2):
            raise Wrong(f"{what}: one step with the result should be the first step and then the "
                        f"second{_mistake(a, b, a1, b1, a2, b2)}")
        _same(f"{what}: grouped as (1 2) 3 and as 1 (2 3)", left, right)
        _same(f"{what}: followed by h -> 1 h + 0, which changes nothing", before, (a1, b1))
        _same(f"{what}: after h -> 1 h + 0, which changes nothing", after, (a1, b1))
        yield f"{what}: values, grouping, the step that changes nothing"


def _same(what, one, other):
    for name, x, y in zip("ab", one, other, strict=True):
        if not _close(x, y):
            raise Wrong(f"{what}: {name} should be the same, but is off by "
                        f"{np.abs(np.asarray(x) - y).max():.3g}")


def _mistake(a, b, a1, b1, a2, b2):
    if not _close(a, a1 * a2):
        for hint, other in ((": the factors multiply, they do not add", a1 + a2),
                            (": the first step's factor is missing in a", a2),
                            (": the second step's factor is missing in a", a1),
                            (": these are b and a: a comes first", a2 * b1 + b2)):
            if _close(a, other):
                return hint
        return ": a is wrong"
    for hint, other in (
        (". This does the second step first: the second step makes a2 b1 + b2 of b1",
         a1 * b2 + b1),
        (": the second step multiplies b1 by a2", b1 + b2),
        (": b2 is missing", a2 * b1),
        (": b1 is missing: the second step multiplies it by a2", b2),
        (": b1 is multiplied by a2, and not by a1: it is added after a1", a1 * b1 + b2),
        (": b2 comes last and is not multiplied by a1", a2 * b1 + a1 * b2),
        (": b2 comes last and is not multiplied by a2", a2 * (b1 + b2)),
        (": the two b are added, not multiplied", a2 * b1 * b2),
    ):
        if _close(b, other):
            return hint
    return ": b is wrong"


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
_GX = "gx = gh * (1 - h**2)\n"
_GW = "gw += gx.T @ before\n"
_END = "return gx, gx @ w\n"
_PAIR = "(a1, b1), (a2, b2) = first, second\n"
WRONG = {
    "32a": {
        "no slope": ("gx = gh\n" + _GW + _END, "the slope of tanh is missing"),
        "tanh twice": ("gx = gh * (1 - np.tanh(h)**2)\n" + _GW + _END, "the result of tanh"),
        "not squared": ("gx = gh * (1 - h)\n" + _GW + _END, "not 1 - h"),
        "gw replaced": (_GX + "gw[...] = gx.T @ before\n" + _END, "has replaced the others"),
        "a new gw": (_GX + "gw = gw + gx.T @ before\n" + _END, "add to it in place"),
        "gw turned around": (_GX + "gw += before.T @ gx\n" + _END, "rows and columns"),
        "gw from h_t": (_GX + "gw += gx.T @ h\n" + _END, "h_{t-1}, not h_t"),
        "W turned around": (_GX + _GW + "return gx, gx @ w.T", "backward has gx @ w"),
        "gh through W": (_GX + _GW + "return gx, gh @ w", "take gx, not gh"),
        "no W": (_GX + _GW + "return gx, gx", "W is missing"),
        "gh is changed": ("gh *= 1 - h**2\ngw += gh.T @ before\nreturn gh, gh @ w",
                          "was changed"),
        "one array": (_GX + _GW + "return gx @ w", "wanted two arrays"),
    },
    "32b": {
        "the other order": (_PAIR + "return a1 * a2, a1 * b2 + b1",
                            "This does the second step first"),
        "b added": (_PAIR + "return a1 * a2, b1 + b2", "multiplies b1 by a2"),
        "a added": (_PAIR + "return a1 + a2, a2 * b1 + b2", "the factors multiply"),
        "no b2": (_PAIR + "return a1 * a2, a2 * b1", "b2 is missing"),
        "no b1": (_PAIR + "return a1 * a2, b2", "b1 is missing"),
        "b1 times a1": (_PAIR + "return a1 * a2, a1 * b1 + b2", "and not by a1"),
        "b first": (_PAIR + "return a2 * b1 + b2, a1 * a2", "a comes first"),
        "in place": (_PAIR + "a1 *= a2\nb1 *= a2\nb1 += b2\nreturn a1, b1", "make new arrays"),
        "nothing": ("return None", "wanted a pair (a, b)"),
    },
}
