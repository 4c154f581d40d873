"""Grades work/18_large_batch.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.course.grade import Wrong


def merged(module, means, m2s, counts):
    with np.errstate(all="ignore"):
        mean, m2 = module.merge(means, m2s, counts)
    return np.asarray(mean, np.float64), np.asarray(m2, np.float64)


def shares_of(seed, counts, offset, spread, channels=3):
    """Returns (x, means, M2s, counts). x: samples near `offset`, cut into shares. means, M2s,
    counts: the statistics of each share.

    All are float32. spread: the standard deviation of the samples of a share."""
    draw = np.random.default_rng(seed)
    x = (offset + spread * draw.normal(size=(sum(counts), channels))).astype(np.float32)
    # Gives each share another mean.
    x += np.repeat(spread * draw.normal(size=len(counts)), counts)[:, None].astype(np.float32)
    means, m2s = [], []
    for part in np.split(x, np.cumsum(counts)[:-1]):
        wide = part.astype(np.float64)
        mean = wide.mean(0) if len(part) else np.zeros(channels)
        means.append(mean)
        m2s.append(((wide - mean) ** 2).sum(0))
    return x, np.array(means, np.float32), np.array(m2s, np.float32), np.array(counts)


def _shares(means, m2s, counts):
    n = counts[:, None].astype(np.float64)
    means, m2s = means.astype(np.float64), m2s.astype(np.float64)
    return means, m2s, n, (n * means).sum(0) / n.sum()


MERGES = {  # {hint: a wrong formula for M2, of (means, M2s, n, mean)}
    "This is the sum of the shares' M2. Add the distance between their means":
        lambda means, m2s, n, mean: m2s.sum(0),
    "The distance between the means counts once for each sample of the share: multiply by n_k":
        lambda means, m2s, n, mean: (m2s + (means - mean) ** 2).sum(0),
    "This is the variance. M2 is not divided by the number of samples":
        lambda means, m2s, n, mean: (m2s + n * (means - mean) ** 2).sum(0) / n.sum(),
    "This is the variance with n - 1. M2 is not divided by the number of samples":
        lambda means, m2s, n, mean: (m2s + n * (means - mean) ** 2).sum(0) / (n.sum() - 1),
    "M2_k is a sum over samples already. Do not multiply it by n_k":
        lambda means, m2s, n, mean: (n * m2s + n * (means - mean) ** 2).sum(0),
}


def grade_18a(student):
    """the statistics of all samples from the statistics of shares, of any lengths."""
    for seed, counts in enumerate([(4, 4, 4), (1, 7, 3, 20), (5,), (30, 1)]):
        _merge_is_right(student, seed, counts, 2.0, 1.0)
        yield f"shares of {', '.join(map(str, counts))} samples"
    _merge_is_right(student, 9, (6, 0, 11, 0), 2.0, 1.0)
    yield "a share without samples counts for nothing"
    _merge_is_right(student, 10, (40, 25, 90), 1e4, 0.01)
    yield "values around 10,000 that spread by 0.01, in float32"


def _merge_is_right(student, seed, counts, offset, spread):
    x, *given = shares_of(seed, counts, offset, spread)
    mean, m2 = student.run(merged, *given)
    where = f"shares of {', '.join(map(str, counts))} samples around {offset:g}"
    wide = x.astype(np.float64)
    want_mean, want = wide.mean(0), ((wide - wide.mean(0)) ** 2).sum(0)
    if mean.shape != want.shape or m2.shape != want.shape:
        raise Wrong(f"{where}: wanted mean and M2 of shape {want.shape}, a number for each "
                    f"channel; got {mean.shape} and {m2.shape}")
    if not (np.isfinite(mean).all() and np.isfinite(m2).all()):
        raise Wrong(f"{where}: the result is not finite. Is something divided by the number of "
                    "samples of a share, which may be 0?")
    with np.errstate(all="ignore"):
        # The tolerance is the relative error of float32.
        if not np.allclose(mean, want_mean, rtol=3e-7, atol=1e-6):
            if np.allclose(mean, given[0].mean(0), rtol=1e-6):
                raise Wrong(f"{where}: this is the plain mean of the means. Multiply each share's "
                            "mean by its number of samples, and divide the sum by all samples")
            if np.allclose(mean, given[0][given[2] > 0].mean(0), rtol=1e-6):
                raise Wrong(f"{where}: this is the plain mean of the means. Multiply each share's "
                            "mean by its number of samples, and divide the sum by all samples")
            raise Wrong(f"{where}: wanted the mean {want_mean}; got {mean}")
        # The float32 means of the shares are wrong by up to half a unit in the last place of
        # `offset`.
        slack = len(x) * (offset * 6e-8) * (offset * 6e-8 + 2 * spread) + 1e-5 * want
        if (abs(m2 - want) <= slack).all():
            return
        for words, formula in MERGES.items():
            if np.allclose(m2, formula(*_shares(*given)), rtol=1e-4):
                raise Wrong(f"{where}: {words}")
        if offset > 1000:
            raise Wrong(f"{where}: wanted M2 {want}; got {m2}. The square of 10,000 in float32 "
                        "has no digits left for such a small spread: subtract the means before "
                        "you square")
        raise Wrong(f"{where}: wanted M2 {want}; got {m2}")


def run_lamb(module, w, gradients, options):
    """Returns the weights after each step."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    after = []
    with np.errstate(all="ignore"):
        for t, g in enumerate(gradients, 1):
            w, m, v = module.lamb(w, g, m, v, t, *options)
            after.append(np.array(w))
    return after


def formula(w, gradients, options, change=""):
    """Returns the right weights after each step, or the weights with the mistake `change`."""
    lr, b1, b2, eps, decay = options
    m, v = np.zeros_like(w), np.zeros_like(w)
    after = []
    for t, g in enumerate(gradients, 1):
        if change == "decay in the gradient":
            g = g + decay * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        first, second = m / (1 - b1**t), v / (1 - b2**t)
        if change == "no correction":
            first, second = m, v
        if change == "corrected by t - 1 alone":
            first, second = m / (1 - b1), v / (1 - b2)
        r = first / (np.sqrt(second) + eps)
        if change == "eps in the root":
            r = first / np.sqrt(second + eps)
        slope_of = r
        if change not in ("decay in the gradient", "no decay"):
            r = r + decay * w
        if change != "ratio without decay":
            slope_of = r
        if change == "ratio of the gradient":
            slope_of = g
        length, slope = np.linalg.norm(w), np.linalg.norm(slope_of)
        ratio = length / slope if length and slope else 1.0
        if change == "upside down":
            ratio = 1 / ratio
        if change == "no ratio":
            ratio = 1.0
        w = w - lr * ratio * r
        after.append(w)
    return after


LAMBS = {
    "no correction": "m and v begin at 0: divide m by 1 - b1^t and v by 1 - b2^t for use",
    "corrected by t - 1 alone": "the divisor of m changes with the step: 1 - b1^t",
    "eps in the root": "eps is added to sqrt(v), not under the root",
    "decay in the gradient": "add decay w to r, not to the gradient, which is divided by sqrt(v)",
    "no decay": "r lacks decay w",
    "ratio without decay": "|r| is the length of the whole r, with decay w",
    "ratio of the gradient": "the ratio is |w| / |r|; yours is |w| / |g|",
    "upside down": "the ratio is upside down. It is |w| / |r|: a layer with long weights takes "
                   "long steps",
    "no ratio": "the step is not scaled by |w| / |r|. This is AdamW",
}


def grade_18b(student):
    """LAMB's weights, step by step."""
    draw = np.random.default_rng(1)
    for shape, options in (((3, 4), (0.1, 0.9, 0.999, 1e-6, 0.1)),
                           ((5,), (0.02, 0.8, 0.99, 1e-2, 0.5))):
        w = 3 * draw.normal(size=shape)
        gradients = [draw.normal(size=shape) for _ in range(4)]
        got = student.run(run_lamb, w, gradients, options)
        want = formula(w, gradients, options)
        for step, (a, b) in enumerate(zip(got, want, strict=True), 1):
            if a.shape != b.shape:
                raise Wrong(f"step {step}: wanted w of shape {b.shape}; got {a.shape}")
            if not np.allclose(a, b, rtol=1e-7, atol=1e-9):
                _explain(w, gradients, options, got, step)
        yield f"four steps of a layer of shape {shape}"
    options = (0.1, 0.9, 0.999, 1e-6, 0.0)
    zero, g = np.zeros((2, 2)), [np.ones((2, 2))] * 2
    got = student.run(run_lamb, zero, g, options)
    if not np.isfinite(got).all() or not np.allclose(got, formula(zero, g, options), atol=1e-9):
        raise Wrong("a layer of zeros: |w| is 0. Here the ratio must be 1. With a ratio of 0 the "
                    f"weights stay 0. After two steps w[0, 0] is {got[-1][0, 0]}")
    yield "a layer that starts from zeros"
    w = np.ones((2, 2))
    got = student.run(run_lamb, w, [np.zeros((2, 2))] * 2, options)
    if not np.allclose(got, 1.0):
        raise Wrong("a gradient of zeros and no decay: |r| is 0. Here the ratio is 1, and w stays "
                    f"as it is. w[0, 0] became {got[-1][0, 0]}")
    yield "a gradient of zeros"


def _explain(w, gradients, options, got, step):
    for change, words in LAMBS.items():
        if np.allclose(got, formula(w, gradients, options, change), rtol=1e-7, atol=1e-9):
            raise Wrong(f"step {step}: {words}")
    if step > 1:
        raise Wrong(f"step 1 is right, but step {step} is not. Return m and v as they were before "
                    "the division by 1 - b^t: the next step begins with them")
    raise Wrong(f"step {step}: the first number of w is {got[step - 1].ravel()[0]:g}, wanted "
                f"{formula(w, gradients, options)[step - 1].ravel()[0]:g}")


# {exercise: {name of the mistake: (the code of the region, or {right: wrong}, words that its
# message must have)}}
WRONG = {
    "18a": {
        "mean of means": (
            {"mean = (n * means).sum(axis=0) / n.sum()": "mean = means.mean(axis=0)"},
            "Multiply each share's mean by its number of samples"),
        "nothing between the means": (
            {"(m2s + n * (means - mean) ** 2).sum(axis=0)": "m2s.sum(axis=0)"},
            "Add the distance between their means"),
        "means without weights": (
            {"m2s + n * (means - mean) ** 2": "m2s + (means - mean) ** 2"},
            "for each sample of the share: multiply by n_k"),
        "the variance": (
            {"(means - mean) ** 2).sum(axis=0)": "(means - mean) ** 2).sum(axis=0) / n.sum()"},
            "This is the variance."),
        "squares of float32": (
            """
n = np.asarray(counts, np.float32)[:, None]
mean = (n * means).sum(axis=0) / n.sum()
return mean, (m2s + n * means**2).sum(axis=0) - n.sum() * mean**2
""",
            "subtract the means before you square"),
    },
    "18b": {
        "no correction": (
            {"m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)": "m / (np.sqrt(v) + eps)"},
            "m and v begin at 0"),
        "AdamW": ({"lr * ratio * r": "lr * r"}, "This is AdamW"),
        "no guard": (
            {"length / slope if length > 0 and slope > 0 else 1.0": "length / slope"},
            "Here the ratio must be 1"),
        "the gradient's length": ({"np.linalg.norm(r)": "np.linalg.norm(g)"}, "|w| / |g|"),
        "corrected for good": (
            """
m = (b1 * m + (1 - b1) * g) / (1 - b1**t)
v = (b2 * v + (1 - b2) * g * g) / (1 - b2**t)
r = m / (np.sqrt(v) + eps) + decay * w
length, slope = np.linalg.norm(w), np.linalg.norm(r)
ratio = length / slope if length > 0 and slope > 0 else 1.0
return w - lr * ratio * r, m, v
""",
            "as they were before the division"),
    },
}
