"""Grades work/17_local_sgd.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student


def planned(module, rates, period):
    return list(module.plan(list(rates), period))


def right_plan(rates, period):
    decays = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1]]
    start = decays[0] if decays else len(rates)
    return _rounds(len(rates), start, period)


def _rounds(n, start, period):
    return ["gradients"] * start + ["weights" if (i + 1) % period == 0 else None
                                    for i in range(n - start)]


def _peak(rates):
    """Returns the first step whose rate differs from the first rate."""
    return next((i for i in range(1, len(rates)) if rates[i] != rates[0]), len(rates))


def _decay(rates):
    return right_plan(rates, 1).count("gradients")


PLANS = {  # {hint: the plan of a student with this mistake}
    "the decay is the first fall of the rate; while it rises, in warm-up, gradients are averaged":
        lambda rates, h: _rounds(len(rates), _peak(rates), h),
    "a rank trains alone from the first step with the lower rate on, not one later":
        lambda rates, h: _rounds(len(rates), min(_decay(rates) + 1, len(rates)), h),
    "a rank trains alone from the step whose rate is lower, not from the one before it":
        lambda rates, h: _rounds(len(rates), _decay(rates) - 1, h),
    "the first round begins with the decay: its steps are counted from there, not from step 0":
        lambda rates, h: ["gradients"] * _decay(rates) + [
            "weights" if (i + 1) % h == 0 else None for i in range(_decay(rates), len(rates))],
    "weights are averaged after the last step of a round; yours are averaged after its first":
        lambda rates, h: ["gradients"] * _decay(rates) + [
            "weights" if i % h == 0 else None for i in range(len(rates) - _decay(rates))],
    "gradients are averaged until the decay; in your plan ranks train alone from the beginning":
        lambda rates, h: _rounds(len(rates), 0, h),
    "until the decay, gradients are averaged at each step, not every `period` steps":
        lambda rates, h: ["gradients" if (i + 1) % h == 0 else None
                          for i in range(_decay(rates))]
        + right_plan(rates, h)[_decay(rates):],
    "after the decay weights are averaged, not gradients: the ranks' weights have become different":
        lambda rates, h: [s and "gradients" for s in right_plan(rates, h)],
    "in a round the ranks send something only after its last step":
        lambda rates, h: ["gradients"] * _decay(rates) + ["weights"] * (len(rates)
                                                                       - _decay(rates)),
    "after the last step the weights are averaged only if its round is over":
        lambda rates, h: (lambda p: p[:-1] + ["weights" if p[-1] is None else p[-1]])(
            right_plan(rates, h)),
}
CASES = [
    ("a decay after 4 of 12 steps, H = 3", [0.2] * 4 + [0.1] * 8, 3),
    ("a warm-up, then a decay", [0.05, 0.1, 0.2, 0.2, 0.2, 0.02, 0.02, 0.02, 0.02], 2),
    ("two decays; a round that does not end", [1.0] * 5 + [0.1] * 6 + [0.01] * 6, 4),
    ("a rate that never falls", [0.1] * 6, 2),
    ("a decay at the second step", [0.4, 0.2, 0.2, 0.2, 0.2], 2),
    ("H = 1", [0.2] * 3 + [0.1] * 3, 1)]


def grade_17a(student):
    """gradients until the first decay, then weights at the end of each round."""
    answers = [student.run(planned, rates, period) for _, rates, period in CASES]
    for (where, rates, period), got in zip(CASES, answers, strict=True):
        want = right_plan(rates, period)
        if len(got) != len(rates):
            raise Wrong(f"{where}: wanted {len(rates)} entries, one for each step; got {len(got)}")
        if got == want:
            continue
        for words, other in PLANS.items():
            if answers == [other(r, h) for _, r, h in CASES]:
                raise Wrong(f"{where}: {words}")
        step = next(i for i, (a, b) in enumerate(zip(got, want)) if a != b)
        raise Wrong(f"{where}: rates {rates}, H = {period}: wanted {want[step]!r} after step "
                    f"{step}; got {got[step]!r}")
    for (where, rates, _), got in zip(CASES, answers, strict=True):
        n = sum(s is not None for s in got)
        yield f"{where}: {n} rounds in {len(rates)} steps"


def outer(module, w, rounds, lr, momentum):
    """Returns w after each round."""
    v, after = np.zeros_like(w), []
    for replicas in rounds:
        w, v = module.outer_step(w, [np.array(r) for r in replicas], v, lr, momentum)
        after.append(np.array(w))
    return after


def outer_by(change, w, rounds, lr, momentum):
    """Returns what outer() returns, by the formulas. If `change` is the name of a mistake, makes
    this mistake."""
    v, after = np.zeros_like(w), []
    for replicas in rounds:
        d = np.mean([w - r for r in replicas], axis=0)
        if change == "sign":
            d = -d
        if change == "sum":
            d = d * len(replicas)
        if change == "first rank":
            d = w - replicas[0]
        before = v
        v = momentum * v + d
        if change == "rate inside":
            v = momentum * before + lr * d
            w = w - (lr * d + momentum * v)
        elif change == "plain":
            w = w - lr * v
        elif change == "no momentum":
            w = w - lr * d
        elif change == "from the mean":
            w = np.mean(replicas, axis=0) - lr * (d + momentum * v)
        elif change == "average":
            w = np.mean(replicas, axis=0)
        elif change == "damped":
            v = momentum * before + (1 - momentum) * d
            w = w - lr * (d + momentum * v)
        else:
            w = w - lr * (d + momentum * v)
        after.append(w)
    return after


OUTERS = {
    "sign": "the pseudo-gradient points back: it is w minus a rank's weights, so that "
            "w - lr d goes where the ranks went",
    "sum": "the pseudo-gradient is the mean over ranks; yours is the sum over ranks",
    "first rank": "the pseudo-gradient is the mean over all ranks; yours is of the first rank only",
    "rate inside": "the rate multiplies the step; in PyTorch's form v has no rate in it",
    "plain": "this is plain momentum. Nesterov's step is along d + momentum v",
    "no momentum": "v is not in the step. The step is along d + momentum v",
    "from the mean": "the step begins at w, the weights at the start of the round. The mean of the "
                     "replicas has moved already",
    "average": "this is the mean of the weights, local SGD. The outer optimizer makes a step "
               "with the mean movement",
    "damped": "v = momentum v + d, without a factor 1 - momentum",
}


def grade_17b(student):
    """the outer optimizer's step, round by round."""
    draw = np.random.default_rng(SEED)
    w = draw.normal(size=4)
    for n_ranks, lr, momentum in ((2, 0.7, 0.9), (3, 0.5, 0.8), (1, 0.3, 0.6)):
        rounds = [[draw.normal(size=4) for _ in range(n_ranks)] for _ in range(3)]
        got = student.run(outer, w, rounds, lr, momentum)
        want = outer_by("", w, rounds, lr, momentum)
        for i, (a, b) in enumerate(zip(got, want, strict=True), 1):
            if a.shape != b.shape:
                raise Wrong(f"round {i}: w has shape {a.shape}, wanted {b.shape}")
        if not np.allclose(got, want, rtol=1e-9, atol=1e-12):
            for change, words in OUTERS.items():
                if np.allclose(got, outer_by(change, w, rounds, lr, momentum), rtol=1e-9):
                    raise Wrong(f"{n_ranks} ranks: {words}")
            i = next(i for i in range(3) if not np.allclose(got[i], want[i]))
            raise Wrong(f"{n_ranks} ranks, round {i + 1}: w is {got[i]}, wanted {want[i]}")
        yield f"{n_ranks} ranks, three rounds, rate {lr:g}, momentum {momentum:g}"
    # A round of one step of SGD is the same as a step of data parallelism.
    g = [draw.normal(size=4) for _ in range(4)]
    got = student.run(outer, w, [[w - 0.1 * x for x in g]], 1.0, 0.0)[0]
    if not np.allclose(got, w - 0.1 * np.mean(g, axis=0)):
        raise Wrong("with rate 1 and no momentum, w should become the mean of the weights")
    yield "rate 1 without momentum: the mean of the weights"


# {exercise: {name of the mistake: (the code of the region, or {right: wrong}, words that its
# message must have)}}
WRONG = {
    "17a": {
        "warm-up is a decay": (
            {"rates[i] < rates[i - 1]": "rates[i] != rates[i - 1]"}, "while it rises, in warm-up"),
        "one step late": (
            {"start = decays[0] if": "start = decays[0] + 1 if"}, "not one later"),
        "counted from step 0": (
            {"(i + 1) % period": "(i + 1 + start) % period"}, "are counted from there"),
        "after the first step": (
            {"(i + 1) % period": "i % period"}, "yours are averaged after its first"),
        "gradients for good": (
            {"\"weights\" if": "\"gradients\" if"}, "weights are averaged, not gradients"),
    },
    "17b": {
        "the other sign": ({"w - w_k for": "w_k - w for"}, "points back"),
        "the sum": ({"np.mean(": "np.sum("}, "yours is the sum over ranks"),
        "plain momentum": ({"lr * (d + momentum * v)": "lr * v"}, "plain momentum"),
        "starts from the mean": (
            {"return w - lr": "return np.mean(replicas, axis=0) - lr"}, "begins at w"),
        "no momentum": ({"(d + momentum * v)": "d"}, "v is not in the step"),
    },
}
