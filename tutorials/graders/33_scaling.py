"""Grades work/33_scaling.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

from minidl.course.grade import Wrong, apart, kind_of

SEED = 0  # `minidl check --student NAME` sets another one for each student


# -- 33a

NAMES = ("level", "slope", "scatter", "level error", "slope error")
# (points, exponent, scatter of ln L, the largest x)
LAWS = [(4, 0.5, 0.0, 1e4), (3, 0.076, 0.01, 1e9), (5, 0.03, 0.005, 1e4), (7, 1.5, 0.2, 30.0),
        (12, 0.34, 0.05, 1e21)]


def points(n, exponent, scatter, largest):
    """Returns (x, loss) in float64. x is not sorted."""
    draw = np.random.default_rng([SEED + 33, n])
    x = largest / np.exp(draw.uniform(0, 5, n))
    return x, 3.0 * (x / x.min()) ** -exponent * np.exp(scatter * draw.normal(size=n))


def fitted(module, n, exponent, scatter, largest):
    """Returns (the result of fit_power_law, True if x or loss was changed)."""
    x, loss = points(n, exponent, scatter, largest)
    before = x.copy(), loss.copy()
    result = module.fit_power_law(x, loss)
    return result, bool((x != before[0]).any() or (loss != before[1]).any())


def grade_33a(student):
    """fit_power_law: slope, level, scatter, and the errors of slope and level."""
    for n, exponent, scatter, largest in LAWS:
        got, changed = student.run(fitted, n, exponent, scatter, largest)
        what = f"{n} points of a power law of {exponent:g}, scatter {scatter:g}"
        if changed:
            raise Wrong(f"{what}: x or loss was changed; both belong to the caller")
        got = _five(what, got)
        if scatter == 0:
            _check_exact(what, got, exponent, points(n, exponent, scatter, largest)[1])
        else:
            _check_fit(what, got, *points(n, exponent, scatter, largest))
        yield f"{what}: slope {got[1]:.5g} +- {got[4]:.2g}"


def _five(what, got):
    if not isinstance(got, (tuple, list)) or len(got) != 5:
        raise Wrong(f"{what}: wanted five numbers, {', '.join(NAMES)}; got {kind_of(got)}")
    for name, value in zip(NAMES, got, strict=True):
        if not _is_number(value):
            raise Wrong(f"{what}: the {name} should be one number, is {kind_of(value)}")
    return [float(value) for value in got]


def _is_number(value):
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in "iuf"
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _check_exact(what, got, exponent, loss):
    level, slope, scatter, level_error, slope_error = got
    if not math.isclose(slope, -exponent, rel_tol=1e-9):
        hint = ""
        if math.isclose(slope, exponent, rel_tol=1e-9):
            hint = ". The loss falls, so the slope of the line is negative: do not change its sign"
        elif math.isclose(slope, -1 / exponent, rel_tol=1e-9):
            hint = ". This is the slope of ln x over ln L: divide by sum(u^2)"
        right, is_now = apart(-exponent, slope)
        raise Wrong(f"{what}: the slope should be {right}, is {is_now}{hint}")
    mean = float(np.log(loss).mean())
    if not math.isclose(level, mean, rel_tol=1e-9):
        hint = ""
        if math.isclose(level, mean / math.log(10), rel_tol=1e-9):
            hint = ". This is a logarithm to the base 10: take np.log"
        elif math.isclose(level, math.log(loss.mean()), rel_tol=1e-9):
            hint = ". This is the logarithm of the mean: take the mean of the logarithms"
        elif math.isclose(level, float(loss.mean()), rel_tol=1e-9):
            hint = ". This is the mean of the loss: take logarithms first"
        elif abs(level - mean) > 1e-9:
            hint = ". Is u = ln x minus its mean? Otherwise the level is ln L at x = 1"
        raise Wrong(f"{what}: the level should be the mean of ln L, {mean:.6g}, is {level:.6g}"
                    f"{hint}")
    for name, value in zip(NAMES[2:], got[2:], strict=True):
        if not abs(value) < 1e-9:
            raise Wrong(f"{what}: all points lie on the line, so the {name} should be 0, is "
                        f"{value:.3g}")


# >>> reference
def _check_fit(what, got, x, loss):
    y = np.log(loss)
    u = np.log(x) - np.log(x).mean()
    n = len(u)
    slope = (u * y).sum() / (u**2).sum()
    residuals = y - y.mean() - slope * u
    square_sum = (residuals**2).sum()
    s = math.sqrt(square_sum / (n - 2))
    wanted = [y.mean(), slope, s, s / math.sqrt(n), s / math.sqrt((u**2).sum())]
    raw = np.log(x)
    hints = {
        "level": {". Is u = ln x minus its mean?": y.mean() - slope * raw.mean()},
        "slope": {". Is u = ln x minus its mean?": (raw * y).sum() / (raw**2).sum()},
        "scatter": {
            ": two numbers were fitted, so divide by n - 2, not by n": math.sqrt(square_sum / n),
            ": two numbers were fitted, so divide by n - 2, not by n - 1":
                math.sqrt(square_sum / (n - 1)),
            ": this is the square of the scatter, take the root": s**2,
            ": divide the sum of squares by n - 2 before the root": math.sqrt(square_sum),
            ": these are the distances to the mean: subtract slope u, too":
                math.sqrt(((y - y.mean())**2).sum() / (n - 2)),
            ": divide inside the root": math.sqrt(square_sum) / (n - 2),
        },
        "level error": {
            ": it falls with the number of points, s / sqrt(n)": s,
            ": the root of n is missing": s / n,
            ": s is divided by sqrt(n), not by sqrt(n - 2)": s / math.sqrt(n - 2),
        },
        "slope error": {
            ": it falls with the spread of the points, s / sqrt(sum(u^2))": s,
            ": the root of sum(u^2) is missing": s / (u**2).sum(),
            ": this is the error of the level": s / math.sqrt(n),
            ": take the sum of u^2, not its mean": s / math.sqrt((u**2).mean()),
            ": take ln x minus its mean": s / math.sqrt((raw**2).sum()),
        },
    }
    for name, value, want in zip(NAMES, got, wanted, strict=True):
        if math.isclose(value, want, rel_tol=1e-8):
            continue
        hint = next((words for words, other in hints[name].items()
                     if math.isclose(value, other, rel_tol=1e-8)), "")
        right, is_now = apart(want, value)
        raise Wrong(f"{what}: the {name} should be {right}, is {is_now}{hint}")
# <<<


# -- 33b

# (C, A, B, alpha, beta)
BUDGETS = [(6e6, 1.0, 1.0, 0.5, 0.5), (5.76e23, 406.4, 410.7, 0.34, 0.28),
           (1e12, 30.0, 700.0, 0.2, 0.45), (6.0, 2.0, 3.0, 1.0, 0.5)]


def optimal(module, c, a, b, alpha, beta):
    return module.compute_optimal(c, a, b, alpha, beta)


def grade_33b(student):
    """compute_optimal: the whole budget is used, and no neighbour has a smaller loss."""
    for case in BUDGETS:
        got = student.run(optimal, *case)
        c, a, b, alpha, beta = case
        what = f"C = {c:g}, A = {a:g}, B = {b:g}, alpha = {alpha:g}, beta = {beta:g}"
        if not isinstance(got, (tuple, list)) or len(got) != 2 or not all(map(_is_number, got)):
            raise Wrong(f"{what}: wanted two numbers, (N, D); got {kind_of(got)}")
        n, d = map(float, got)
        if not (n > 0 and d > 0 and math.isfinite(n) and math.isfinite(d)):
            raise Wrong(f"{what}: N and D should be numbers above 0, are {n:g} and {d:g}")
        spent = 6 * n * d / c
        if not math.isclose(spent, 1, rel_tol=1e-9):
            hint = ""
            if math.isclose(spent, 6, rel_tol=1e-9):
                hint = ". The 6 is missing: each weight costs 6 operations for each token"
            elif math.isclose(spent, 1 / 6, rel_tol=1e-9) or math.isclose(spent, 1 / 36,
                                                                        rel_tol=1e-9):
                hint = ". The budget is divided by 6 too often"
            raise Wrong(f"{what}: 6 N D should be C, is {spent:.6g} C{hint}")
        _check_least(what, n, case)
        yield f"{what}: N = {n:.4g}, D = {d:.4g}"


def _check_least(what, n, case):
    """Raises Wrong if a slightly larger or smaller N has a smaller loss."""
    c, a, b, alpha, beta = case

    def loss(n):
        return a * n**-alpha + b * (c / (6 * n)) ** -beta

    # Near its minimum the loss is a parabola. At a distance of 0.1 % it is about 1e-7 larger.
    here, less, more = loss(n), loss(n * 0.999), loss(n * 1.001)
    if here < less and here < more:
        return
    _name_the_mistake(what, n, case)
    better = "more" if more < less else "fewer"
    raise Wrong(f"{what}: N = {n:.6g} is not the best: {better} parameters have a smaller loss")


def _name_the_mistake(what, n, case):
    c, a, b, alpha, beta = case
    total = alpha + beta
    ratio = alpha * a / (beta * b)
    g = ratio ** (1 / total)
    right = g * (c / 6) ** (beta / total)
    for words, other in (
        ("the power of the budget is beta / (alpha + beta): if tokens help much (large beta), "
         "few tokens are enough, and N may grow", g * (c / 6) ** (alpha / total)),
        ("G is upside down: alpha A is above beta B", (c / 6) ** (beta / total) / g),
        ("G has no alpha and beta in its fraction: the derivative of N^-alpha brings alpha down",
         (a / b) ** (1 / total) * (c / 6) ** (beta / total)),
        ("G needs the power 1 / (alpha + beta)", ratio * (c / 6) ** (beta / total)),
        ("G is missing", (c / 6) ** (beta / total)),
        ("these are D and N: N comes first", c / 6 / right),
        ("the 6 belongs to the budget in N, too", g * c ** (beta / total)),
        ("N and D are not equal in general: it depends on A, B, alpha and beta",
         math.sqrt(c / 6)),
        ("20 tokens for each parameter are right for one set of constants and one budget",
         math.sqrt(c / 120)),
    ):
        if math.isclose(n, other, rel_tol=1e-6):
            shown, is_now = apart(right, n)
            raise Wrong(f"{what}: N should be {shown}, is {is_now}: {words}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
_U = "log_x = np.log(x)\ny = np.log(loss)\nu = log_x - log_x.mean()\n"
_SLOPE = "slope = (u * y).sum() / (u**2).sum()\nlevel = y.mean()\n"
_S = "r = y - level - slope * u\nscatter = np.sqrt((r**2).sum() / (len(u) - 2))\n"
_END = "return level, slope, scatter, scatter / len(u)**0.5, scatter / (u**2).sum()**0.5\n"
_G = "g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))\n"
_N = "n = g * (c / 6) ** (beta / (alpha + beta))\n"
_D = "return n, c / (6 * n)\n"
WRONG = {
    "33a": {
        "u not centred": (
            _U.replace(" - log_x.mean()", "")
            + "slope, level = np.polyfit(u, y, 1)\n" + _S + _END,
            "Otherwise the level is ln L at x = 1"),
        "divided by n": (
            _U + _SLOPE + _S.replace("(len(u) - 2)", "len(u)") + _END,
            "divide by n - 2, not by n"),
        "the square": (
            _U + _SLOPE + "r = y - level - slope * u\nscatter = (r**2).sum() / (len(u) - 2)\n"
            + _END, "this is the square of the scatter"),
        "base 10": (
            _U.replace("np.log(", "np.log10(") + _SLOPE + _S + _END, "to the base 10"),
        "the sign": (
            _U + _SLOPE + _S + _END.replace("slope,", "-slope,"), "do not change its sign"),
        "the slope's error without u": (
            _U + _SLOPE + _S + "return level, slope, scatter, scatter / len(u)**0.5, scatter",
            "it falls with the spread of the points"),
        "the level's error without n": (
            _U + _SLOPE + _S + "return level, slope, scatter, scatter, "
            "scatter / (u**2).sum()**0.5", "it falls with the number of points"),
        "residuals of the mean": (
            _U + _SLOPE + _S.replace(" - slope * u", "") + _END, "so the scatter should be 0"),
        "four numbers": (
            _U + _SLOPE + _S + "return level, slope, scatter, scatter / len(u)**0.5",
            "wanted five numbers"),
        "nothing": ("return None", "is there a return?"),
    },
    "33b": {
        "the powers swapped": (
            _G + _N.replace("(beta /", "(alpha /") + _D, "The power of the budget".lower()),
        "G turned around": (
            "g = (beta * b / (alpha * a)) ** (1 / (alpha + beta))\n" + _N + _D,
            "G is upside down"),
        "no alpha and beta in G": (
            "g = (a / b) ** (1 / (alpha + beta))\n" + _N + _D,
            "brings alpha down"),
        "no power of G": ("g = alpha * a / (beta * b)\n" + _N + _D, "needs the power"),
        "no 6": (_G + "n = g * c ** (beta / (alpha + beta))\nreturn n, c / n", "The 6 is missing"),
        "D first": (_G + _N + "return c / (6 * n), n", "N comes first"),
        "equal parts": ("n = (c / 6) ** 0.5\nreturn n, n", "not equal in general"),
        "N alone": (_G + _N + "return n", "wanted two numbers"),
    },
}
