"""Grades work/05_amp.py.   Test: tests/tutorials/test_exercises.py"""

import math

import numpy as np

import minidl
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

TRACES = {  # name: (the first scale, the interval, 1 for each overflow)
    "good steps only": (2.0**16, 3, [0] * 10),
    "an overflow just before the scale would grow": (2.0**16, 3, [0, 0, 1, 0, 0, 0, 0]),
    "overflows one after the other": (2.0**16, 2, [1, 1, 1, 0, 0, 0, 1, 0]),
    "an interval of 1": (2.0**16, 1, [0, 0, 1, 0, 1, 1, 0]),
    "a scale that falls below 1": (2.0, 2, [1, 1, 1, 0, 0, 0, 0]),
    "200 random steps": (
        2.0**16, 5, (minidl.Generator(SEED + 2).uniform(200) < 0.1).astype(int).tolist()),
}


class Scale:
    """The dynamic scale, written from the text of the exercise. It needs no solution."""

    def __init__(self, scale, interval):
        self.scale, self.interval, self.in_a_row, self.skipped = scale, interval, 0, 0

    def update(self, overflow):
        self.in_a_row = 0 if overflow else self.in_a_row + 1
        self.skipped += bool(overflow)
        if overflow or self.in_a_row == self.interval:
            self.scale *= 0.5 if overflow else 2.0
            self.in_a_row = 0


def scales(module, what):
    """Returns [(scale, skipped) after each step of a trace]. If `module` is None, returns the right
    values."""
    start, interval, overflows = TRACES[what]
    scaler = module.DynamicLossScaler(start, interval) if module else Scale(start, interval)
    after = []
    for overflow in overflows:
        scaler.update(bool(overflow))
        after.append((scaler.scale, scaler.skipped))
    return after


def grade_05a(student):
    """The scale halves at an overflow and doubles after `interval` good steps in a row."""
    for what, (_, interval, overflows) in TRACES.items():
        for step, (got, wanted) in enumerate(zip(student.run(scales, what), scales(None, what),
                                                 strict=True)):
            done = f"{what}: after step {step + 1} of {overflows[: step + 1][-8:]} (1: overflow)"
            if got[0] != wanted[0]:
                hint = (". A scale of 1/2 is allowed: use `/ 2`, not `// 2`" if wanted[0] < 1 else
                        f". It doubles when good step number {interval} in a row is done. Then "
                        "start to count good steps again from 0"
                        if got[0] < wanted[0] else
                        ". It doubled too soon: after an overflow, and after a doubling, start to "
                        "count good steps again from 0")
                raise Wrong(f"{done} with interval {interval} the scale should be {wanted[0]:g}, "
                            f"is {got[0]:g}{hint}")
            if got[1] != wanted[1]:
                raise Wrong(f"{done} {wanted[1]} steps were skipped, but self.skipped is {got[1]}")
        yield what


def stepped(module, weights, masters, grads, scale, lr, max_norm, n=1):
    """Does n equal steps. Returns (the result of the last step, weights, masters)."""
    with np.errstate(invalid="ignore"):
        for _ in range(n):
            overflow = module.mixed_step(weights, masters, grads, scale, lr, max_norm)
    return overflow, weights, masters


def grade_05b(student):
    """A mixed step unscales in fp32, skips at inf, clips, and updates the masters."""
    rng = minidl.Generator(SEED + 3)
    shapes = [(3, 5), (7,), ()]
    start = [np.asarray(rng.normal(*shape)) for shape in shapes]
    gradients = [np.asarray(rng.normal(*shape)) for shape in shapes]
    for scale, size in ((1.0, 1.0), (1024.0, 1.0), (2.0**26, 2.0**-26)):
        _same_step(student, start, [g * np.float32(size) for g in gradients], scale, 0.1 / size,
                   math.inf)
        yield f"scale {scale:g}, gradients of about {size:.1g}"
    for max_norm in (0.5, 100.0):
        _same_step(student, start, gradients, 1024.0, 0.1, max_norm)
        yield f"clipped to a norm of {max_norm:g}"
    for bad in (np.inf, -np.inf, np.nan):
        _skips(student, start, gradients, bad)
    yield "inf, -inf or nan in the last gradient: nothing changes, to the bit"
    _adds_up(student)
    yield "updates below half a unit in the last place add up"
    _trains(student)
    yield "40 steps with an inf at step 7: the scale halves once, the loss is fp32's within 1%"


def _arrays(start):
    weights = [w.astype(np.float16) for w in start]
    return weights, [w.astype(np.float32) for w in weights]


def _same_step(student, start, gradients, scale, lr, max_norm):
    """Compares a step with the formula in float64."""
    weights, masters = _arrays(start)
    grads = [(g * np.float32(scale)).astype(np.float16) for g in gradients]
    true = [g.astype(np.float64) / scale for g in grads]
    norm = math.sqrt(sum(float((g * g).sum()) for g in true))
    factor = lr * min(1.0, max_norm / norm)
    wanted = [m - factor * g for m, g in zip(masters, true, strict=True)]
    overflow, weights, masters = student.run(stepped, weights, masters, grads, scale, lr, max_norm)
    if overflow is not False and not (isinstance(overflow, np.bool_) and not overflow):
        raise Wrong(f"all gradients are finite: the step should return False, got {overflow!r}")
    if all((m == w.astype(np.float16)).all() for m, w in zip(masters, start, strict=True)):
        raise Wrong(f"scale {scale:g}: the fp32 masters did not move. Did you divide the gradients "
                    "by the scale in fp16? Or did you update only the fp16 weights?")
    for i, (m, w, weight) in enumerate(zip(masters, wanted, weights, strict=True)):
        # The bound is for some fp32 roundings of numbers near 1.
        if not np.allclose(m, w, rtol=1e-5, atol=1e-5):
            hint = ("The norm to clip is the norm of the unscaled gradients, all of them together"
                    if math.isfinite(max_norm) else "Is it master - lr * gradient / scale? Is "
                    "the gradient divided in fp32 (g.astype(np.float32) first), not in fp16?")
            raise Wrong(f"scale {scale:g}, max_norm {max_norm:g}: master {i} is off by "
                        f"{np.abs(m - w).max():.2g}. {hint}")
        if not np.array_equal(weight, m.astype(np.float16)):
            raise Wrong(f"weight {i} is not its master rounded to fp16. Copy the master into the "
                        "weight, in place")


def _skips(student, start, gradients, bad):
    weights, masters = _arrays(start)
    masters = [m + np.float32(1e-5) for m in masters]  # numbers that fp16 cannot hold
    before = (*weights, *masters)
    grads = [g.astype(np.float16) for g in gradients]
    grads[-1][...] = bad
    overflow, weights, masters = student.run(stepped, weights, masters, grads, 8.0, 0.1, 1.0)
    if not overflow:
        raise Wrong(f"a gradient is {bad}: the step should return True")
    if any(a.tobytes() != b.tobytes() for a, b in zip((*weights, *masters), before, strict=True)):
        raise Wrong(f"a gradient is {bad}: the step must change nothing. Look at all gradients "
                    "before the first update")


def _adds_up(student):
    """Checks that 64 updates of 2^-14 change a weight of 1. Below 1 the fp16 numbers are 2^-11
    apart, so fp16 rounds each of these updates to nothing."""
    weights, masters = _arrays([np.ones(4)])
    grads = [np.full(4, 0.5, np.float16)]
    _, weights, _ = student.run(stepped, weights, masters, grads, 1.0, 2.0**-13, math.inf, 64)
    if weights[0][0] != 1 - 64 * 2.0**-14:
        raise Wrong(f"64 updates of 2^-14 from a weight of 1 should give {1 - 64 * 2.0**-14}, got "
                    f"{float(weights[0][0])}. fp16 rounds each update to nothing. Update the fp32 "
                    "master")


def _trains(student):
    """Trains a regression, with an inf at step 7. The gradients are far below the smallest number
    of fp16."""
    rng = minidl.Generator(SEED + 5)
    x, true = rng.normal(64, 8), rng.normal(8, 3)
    tiny, lr = 2.0**-24, 0.2

    def gradient(w):
        return (x.T @ (x @ w - x @ true)) * np.float32(2 / len(x))

    def loss(w):
        return float(((x @ w.astype(np.float32) - x @ true) ** 2).mean())

    single = np.zeros((8, 3), np.float32)
    weights, masters = _arrays([single])
    scaler = Scale(2.0**24, interval=100)
    for step in range(41):
        if step != 7:
            single -= lr * gradient(single)
        grad = (gradient(weights[0].astype(np.float32)) * tiny * scaler.scale).astype(np.float16)
        if step == 7:
            grad[0, 0] = np.inf
        overflow, weights, masters = student.run(stepped, weights, masters, [grad], scaler.scale,
                                                 lr / tiny, 1.0)
        scaler.update(overflow)
    if scaler.scale != 2.0**23:
        raise Wrong(f"one inf in 41 steps: the scale should halve once, but it is {scaler.scale}")
    at_start = loss(np.zeros((8, 3)))
    if abs(loss(weights[0]) - loss(single)) > 0.01 * at_start:
        raise Wrong(f"after 40 steps the loss should be {loss(single):.4f}, as in fp32. It may "
                    f"differ by 1% of the first loss, {at_start:.4f}; it is "
                    f"{loss(weights[0]):.4f}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "05a": {
        "an overflow does not restart the count": (
            {"    self.scale /= 2\n    self.good_steps = 0\n": "    self.scale /= 2\n"},
            "the scale should be",
        ),
        "doubles at every good step from the interval on": (
            {"self.good_steps == self.interval": "self.good_steps >= self.interval",
             "    self.scale *= 2\n    self.good_steps = 0\n": "    self.scale *= 2\n"},
            "the scale should be",
        ),
        "one step late": (
            {"self.good_steps += 1\n": "",
             "    self.scale *= 2\n"
             "    self.good_steps = 0\n":
              "    self.scale *= 2\n"
              "    self.good_steps = 0\n"
              "self.good_steps += 1\n"},
            "the scale should be",
        ),
        "forgets to count the skipped steps": (
            """
self.good_steps = 0 if overflow else self.good_steps + 1
if overflow:
    self.scale /= 2
elif self.good_steps == self.interval:
    self.scale *= 2
    self.good_steps = 0
""",
            "self.skipped is 0",
        ),
        "falls by a tenth": (
            {"self.scale /= 2": "self.scale *= 0.9"},
            "the scale should be",
        ),
    },
    "05b": {
        "unscales after clipping": (
            {" / np.float32(scale)": "",
             "master -= factor * g": "master -= factor * g / np.float32(scale)"},
            "the unscaled gradients",
        ),
        "forgets the master weights": (
            {"    master -= factor * g\n"
             "    weight[...] = master\n":
              "    weight[...] = weight - factor * g\n"
              "    master[...] = weight\n"},
            "master 0 is off",
        ),
        "unscales in fp16": (
            {"g.astype(np.float32) / np.float32(scale)":
              "(g * np.float16(1 / scale)).astype(np.float32)"},
            "did not move",
        ),
        "updates before it looks for inf": (
            {"if not all(np.isfinite(g).all() for g in unscaled):\n    return True\n": "",
             "    master -= factor * g\n":
              "    if not np.isfinite(g).all():\n"
              "        return True\n"
              "    master -= factor * g\n"},
            "must change nothing",
        ),
        "does not look for nan": (
            {"not all(np.isfinite(g).all()": "any(np.isinf(g).any()"},
            "a gradient is nan",
        ),
        "does not copy the masters down": (
            {"    weight[...] = master\n": ""},
            "Copy the master into",
        ),
        "clips every gradient alone": (
            {"    master -= factor * g\n":
              "    norm = math.sqrt(float((g.astype(np.float64) ** 2).sum()))\n"
              "    master -= np.float32(lr * min(1.0, max_norm / norm)) * g\n"},
            "all of them together",
        ),
    },
}
