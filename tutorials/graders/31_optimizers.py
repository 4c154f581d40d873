"""Grades work/31_optimizers.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

from minidl.course.grade import Wrong, apart, kind_of

SEED = 0  # `minidl check --student NAME` sets another one for each student


# -- 31a

# (shape, options, steps). Some have one weight, no weights, or unusual options.
STEPS = [
    ((4,), dict(lr=0.1), 1),
    ((1,), dict(lr=0.25, decay=0.5), 1),
    ((3, 5), dict(lr=0.03, decay=0.2), 6),
    ((2, 1, 3), dict(lr=0.01, decay=0.1, b1=0.8, b2=0.95, eps=1e-3), 9),
    ((0, 4), dict(lr=0.1, decay=0.1), 2),
]


def inputs(shape, n_steps):
    """Returns (w, a gradient for each step) in float64. Some gradients are 0."""
    draw = np.random.default_rng([SEED + 31, n_steps, *shape])
    w = draw.normal(size=shape) * 3
    sizes = 10.0 ** draw.integers(-2, 3, (n_steps, *shape))
    gradients = draw.normal(size=sizes.shape) * sizes
    gradients.reshape(n_steps, -1)[1:, :1] = 0
    return w, gradients


def steps(module, shape, options, n_steps):
    """Returns (w, m, v, True if a gradient was changed) after all steps."""
    w, gradients = inputs(tuple(shape), n_steps)
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    before = gradients.copy()
    for t, g in enumerate(gradients, 1):
        module.adamw_step(w, g, m, v, t, **options)
    return w, m, v, bool((gradients != before).any())


def still(module, n_steps):
    """Returns the weights 1, 2, -3 after steps with gradients of 0, lr 0.1 and decay 0.5."""
    w = np.array([1.0, 2.0, -3.0])
    m = np.zeros(3)
    v = np.zeros(3)
    for t in range(1, n_steps + 1):
        module.adamw_step(w, np.zeros(3), m, v, t, lr=0.1, decay=0.5)
    return w


def grade_31a(student):
    """adamw_step: running means, their correction, a decay that no gradient divides."""
    _check_decay(student.run(still, 3))
    yield "gradients of 0: the weights shrink by 1 - lr * decay in each step"
    for shape, options, n_steps in STEPS:
        w, m, v, changed = student.run(steps, list(shape), options, n_steps)
        start, gradients = inputs(shape, n_steps)
        what = f"weights {shape}, {n_steps} steps, {_named(options)}"
        if changed:
            raise Wrong(f"{what}: g was changed. It belongs to the caller: write g * (1 - b1), not "
                        "g *= 1 - b1")
        if n_steps == 1 and options.get("decay", 0) == 0:
            _check_first(start, w, gradients[0], options["lr"])
        _compare(what, (w, m, v), start, gradients, options)
        yield what


def _named(options):
    return ", ".join(f"{name} {value:g}" for name, value in options.items())


def _check_decay(w):
    start = np.array([1.0, 2.0, -3.0])
    factor = w / start
    wanted = 0.95**3
    if np.allclose(factor, wanted, rtol=1e-12):
        return
    hint = ""
    if not np.isfinite(factor).all():
        hint = ". There is a division by 0: add eps to the root"
    elif np.allclose(factor, 1):
        hint = (". They did not change: AdamW shrinks w in place. Write w *= ..., because "
                "w = ... makes a new array that the caller does not see")
    elif np.allclose(factor, 0.5**3):
        hint = ". The decay is multiplied by lr: 1 - lr * decay"
    elif np.allclose(factor, 1.05**3):
        hint = ". They grow: the factor is 1 - lr * decay"
    elif np.allclose(np.abs(start - w), np.abs(start - w)[0], rtol=0.02):
        hint = (". All weights moved by the same step: the decay was added to the gradient, and "
                "Adam divides the gradient by its size. This is L2, not AdamW")
    raise Wrong("three steps with gradients of 0, lr 0.1, decay 0.5: the weights 1, 2, -3 should "
                f"be multiplied by (1 - 0.1 * 0.5)^3 = {wanted:.6g}, but are multiplied by "
                f"{factor.round(6).tolist()}{hint}")


def _check_first(start, w, g, lr):
    moved = (w - start) / (-lr * np.sign(g))
    if np.allclose(moved, np.abs(g) / (np.abs(g) + 1e-8), rtol=1e-9):  # eps is 1e-8
        return
    hint = ""
    if np.allclose(moved, np.abs(g) / np.sqrt(g**2 + 1e-8), rtol=1e-9):
        hint = ". Add eps after the root: sqrt(v') + eps"
    elif np.allclose(moved, moved[0], rtol=1e-3):
        for value, words in (
                (-1, "It goes up the gradient: subtract"),
                ((1 - 0.9) / math.sqrt(1 - 0.999), "Both running means begin at 0 and are too "
                 "small: divide m by 1 - b1^t, and v by 1 - b2^t"),
                (1 - 0.9, "m begins at 0 and is too small: divide it by 1 - b1^t, too"),
                (1 / math.sqrt(1 - 0.999), "v begins at 0 and is too small: divide it by "
                 "1 - b2^t, too"),
                (0, "It did not move: change w in place, w -= ...")):
            if math.isclose(moved[0], value, rel_tol=1e-3, abs_tol=1e-9):
                hint = f". {words}"
    elif np.allclose(moved * g**2, moved[0] * g[0]**2, rtol=1e-3) or np.allclose(
            moved * np.abs(g), moved[0] * np.abs(g[0]), rtol=1e-3):
        hint = ". Divide by the root of v', not by v'"
    elif np.allclose(moved / np.sqrt(np.abs(g)), (moved / np.sqrt(np.abs(g)))[0], rtol=1e-3):
        hint = ". v is the running mean of g^2, not of |g|"
    elif np.allclose(moved / np.abs(g), (moved / np.abs(g))[0], rtol=1e-3):
        hint = ". The step grows with g: divide by sqrt(v')"
    raise Wrong("the first step without decay should be lr or -lr for each weight, for a gradient "
                f"of any size; in units of lr it is {moved.round(4).tolist()}{hint}")


# >>> reference
def _compare(what, got, start, gradients, options):
    wanted = _after(start, gradients, **options)
    for name, one, want in zip("wmv", got, wanted, strict=True):
        if np.allclose(one, want, rtol=1e-10, atol=1e-12):  # float64, nine steps at most
            continue
        for words, mistake in MISTAKES.items():
            wrong = dict(zip("wmv", _after(start, gradients, mistake, **options), strict=True))
            if np.allclose(one, wrong[name], rtol=1e-10, atol=1e-12) and not np.allclose(
                    wrong[name], want, rtol=1e-10, atol=1e-12):
                raise Wrong(f"{what}: {name} is wrong: {words}")
        if name != "w" and not np.any(one):
            raise Wrong(f"{what}: {name} is still 0: change it in place, {name}[...] = ..., "
                        "because the next step needs it")
        at = tuple(int(i) for i in np.argwhere(~np.isclose(one, want, rtol=1e-10, atol=1e-12))[0])
        right, is_now = apart(want[at], one[at])
        raise Wrong(f"{what}: {name}{list(at)} should be {right}, is {is_now}")


MISTAKES = {
    "the decay was added to the gradient. This is Adam with L2: large gradients shrink the decay":
        "L2",
    "the decay comes after the step, and shrinks the step, too. Shrink w first": "after",
    "Add eps after the root: sqrt(v') + eps": "eps inside",
    "b1 belongs to m, and b2 to v": "swapped",
    "m and v are the running means, b1 * m + (1 - b1) * g, but m or v was not kept from step to "
    "step": "forgets",
    "the divisors are 1 - b1**t and 1 - b2**t: t is the number of the step, but here it is always "
    "1": "t is 1",
    "the running means were corrected in place. Do not change m and v: put m' and v' into "
    "other names": "in place",
    "the gradient is not multiplied by 1 - b1, or its square by 1 - b2": "sums",
}


def _after(w, gradients, mistake="", lr=0.1, decay=0.0, b1=0.9, b2=0.999, eps=1e-8):
    """Returns (w, m, v) after all steps of AdamW, computed with the mistake of this name."""
    w = w.copy()
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    if mistake == "swapped":
        b1, b2 = b2, b1
    for t, g in enumerate(gradients, 1):
        if mistake == "t is 1":
            t = 1
        if mistake == "L2":
            g = g + decay * w
        elif mistake != "after":
            w *= 1 - lr * decay
        new1, new2 = (1, 1) if mistake == "sums" else (1 - b1, 1 - b2)
        keep = 0 if mistake == "forgets" else 1
        m[...] = keep * b1 * m + new1 * g
        v[...] = keep * b2 * v + new2 * g**2
        mean = m / (1 - b1**t)
        square = v / (1 - b2**t)
        if mistake == "in place":
            m[...], v[...] = mean, square
        root = np.sqrt(square + eps) if mistake == "eps inside" else np.sqrt(square) + eps
        w -= lr * mean / root
        if mistake == "after":
            w *= 1 - lr * decay
    return w, m, v
# <<<


# -- 31b

SHAPES = [((7, 50), 0.0), ((50, 7), 0.0), ((9, 20), 1.0), ((6, 12), 0.25), ((8, 3, 5, 2), 0.0),
          ((4, 16, 3, 3), 0.1), ((1, 1), 0.0)]


def variance(module, shape, slope):
    return module.he_variance(tuple(shape), slope)


def grade_31b(student):
    """he_variance: the variance times fan_in times the part that the leaky ReLU keeps is 1."""
    for shape, slope in SHAPES:
        got = student.run(variance, list(shape), slope)
        what = f"shape {shape}, slope {slope:g}"
        is_array = isinstance(got, np.ndarray) and got.shape == ()
        if isinstance(got, bool) or not (is_array or isinstance(got, (int, float, np.floating))):
            raise Wrong(f"{what}: wanted one number; got {kind_of(got)}")
        got = float(np.real(got))
        _check_variance(what, got, shape, slope)
        yield f"{what}: {got:.6g}"


def _check_variance(what, got, shape, slope):
    fan_in = math.prod(shape[1:])
    fan_out = shape[0] * math.prod(shape[2:])
    wanted = 2 / (1 + slope**2) / fan_in
    if math.isclose(got, wanted, rel_tol=1e-12):
        return
    gain2 = wanted * fan_in
    for hint, other in (
        ("this is the standard deviation: its square is the variance", math.sqrt(wanted)),
        ("this counts the outputs. A sum has fan_in products, the product of shape[1:]",
         gain2 / fan_out),
        ("the window is missing: one output of a convolution is a sum over inputs * kh * kw "
         "products", gain2 / shape[1]),
        ("this counts all weights. One output is a sum over the weights of shape[1:]",
         gain2 / math.prod(shape)),
        ("this is Xavier's, over inputs and outputs together: 2 / (fan_in + fan_out)",
         2 / (fan_in + fan_out)),
        ("ReLU keeps only half of the mean of z^2: the variance must be larger", 1 / fan_in),
        ("the slope is missing: the leaky ReLU keeps (1 + slope^2) / 2", 2 / fan_in),
        ("the slope multiplies z, so its square multiplies z^2", 2 / (1 + slope) / fan_in),
        ("divide by the part that is kept, do not multiply", 1 / gain2 / fan_in),
        ("do not take the root of the part that is kept: it is a part of z^2, not of z",
         math.sqrt(gain2) / fan_in),
        ("both halves count: the mean over positive and negative z is (1 + slope^2) / 2",
         1 / (1 + slope**2) / fan_in),
        ("divide by fan_in, do not multiply", gain2 * fan_in),
    ):
        if math.isclose(got, other, rel_tol=1e-9) and not math.isclose(other, wanted):
            right, is_now = apart(wanted, got)
            raise Wrong(f"{what}: the variance should be {right}, is {is_now}: {hint}")
    right, is_now = apart(wanted, got)
    raise Wrong(f"{what}: the variance should be {right}, is {is_now}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
_MEANS = """
m[...] = b1 * m + (1 - b1) * g
v[...] = b2 * v + (1 - b2) * g**2
"""
_CORRECTED = """
mean = m / (1 - b1**t)
mean_square = v / (1 - b2**t)
"""
_STEP = "w -= lr * mean / (np.sqrt(mean_square) + eps)\n"
WRONG = {
    "31a": {
        "L2": ("g = g + decay * w" + _MEANS + _CORRECTED + _STEP, "This is L2, not AdamW"),
        "decay without lr": ("w *= 1 - decay" + _MEANS + _CORRECTED + _STEP,
                             "The decay is multiplied by lr"),
        "no correction": (
            "w *= 1 - lr * decay" + _MEANS + "w -= lr * m / (np.sqrt(v) + eps)",
            "divide m by 1 - b1^t, and v by 1 - b2^t"),
        "only m corrected": (
            "w *= 1 - lr * decay" + _MEANS + "w -= lr * m / (1 - b1**t) / (np.sqrt(v) + eps)",
            "divide it by 1 - b2^t, too"),
        "eps inside the root": (
            "w *= 1 - lr * decay" + _MEANS + _CORRECTED
            + "w -= lr * mean / np.sqrt(mean_square + eps)", "Add eps after the root"),
        "a new array": (
            "w = w * (1 - lr * decay)" + _MEANS + _CORRECTED + _STEP, "in place. Write w *= ..."),
        "m is a new array": (
            "w *= 1 - lr * decay\nm = b1 * m + (1 - b1) * g\nv = b2 * v + (1 - b2) * g**2"
            + _CORRECTED + _STEP, "change it in place, m[...]"),
        "the decay last": (
            _MEANS + _CORRECTED + _STEP + "w *= 1 - lr * decay", "Shrink w first"),
        "corrected in place": (
            "w *= 1 - lr * decay" + _MEANS + "m /= 1 - b1**t\nv /= 1 - b2**t\n"
            "w -= lr * m / (np.sqrt(v) + eps)", "put m' and v' into other names"),
        "|g| for g^2": (
            {"g**2": "np.abs(g)"}, "v is the running mean of g^2, not of |g|"),
        "g is changed": (
            "g *= 1 - b1\nw *= 1 - lr * decay\nm[...] = b1 * m + g\n"
            "v[...] = b2 * v + (1 - b2) * (g / (1 - b1))**2" + _CORRECTED + _STEP,
            "g was changed"),
    },
    "31b": {
        "the standard deviation": (
            "return (2 / (1 + slope**2) / math.prod(shape[1:])) ** 0.5", "its square is the"),
        "fan_out": (
            "return 2 / (1 + slope**2) / (shape[0] * math.prod(shape[2:]))",
            "counts the outputs"),
        "no window": ("return 2 / (1 + slope**2) / shape[1]", "the window is missing"),
        "all weights": ("return 2 / (1 + slope**2) / math.prod(shape)", "counts all weights"),
        "the identity's": ("return 1 / math.prod(shape[1:])", "keeps only half"),
        "no slope": ("return 2 / math.prod(shape[1:])", "the slope is missing"),
        "the slope not squared": (
            "return 2 / (1 + slope) / math.prod(shape[1:])", "its square multiplies z^2"),
        "Xavier's": (
            "window = math.prod(shape[2:])\nreturn 2 / ((shape[0] + shape[1]) * window)",
            "this is Xavier's"),
        "nothing": ("return None", "wanted one number"),
    },
}
