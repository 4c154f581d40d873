"""Grades work/13_tensor_parallel.py.   Test: tests/tutorials/test_exercises.py"""

import numpy as np

from minidl.comm import Ledger, chunks, ring, simulate
from minidl.course.grade import Wrong

SEED = 0  # `minidl check --student NAME` sets another one for each student

CASES = [(1, 6, 9), (2, 7, 10), (3, 8, 11), (4, 5, 4), (5, 10, 23)]  # (ranks, rows, words)
OFFSET = 800.0  # e^800 is too large for a float64


def personal(draw):
    """Returns the cases, with one more that differs for each student."""
    case = draw.integers((2, 3, 8), (6, 13, 40))  # ranks, rows, words
    return {"CASES": [*CASES, tuple(map(int, case))]}


def problem(n_rows, words):
    """Returns (logits, target). The first and the last word are among the targets."""
    rng = np.random.default_rng([SEED + n_rows, words])
    target = rng.integers(0, words, n_rows)
    target[:2] = 0, words - 1
    return OFFSET + 4 * rng.normal(size=(n_rows, words)), target


def computed(module, p, n_rows, words):
    """Returns for each rank (loss, gradient, bytes sent, True if its logits were not changed)."""
    logits, target = problem(n_rows, words)
    bounds = chunks.bounds(words, p)

    def body(t):
        ledger = Ledger(t)
        first, end = bounds[t.rank : t.rank + 2]
        own = logits[:, first:end].copy()
        with np.errstate(all="ignore"):
            loss, gradient = module.cross_entropy(ledger, own, target.copy(), first)
        same = bool((own == logits[:, first:end]).all())
        return np.array(loss, float), np.array(gradient, float), ledger.bytes_sent, same

    return simulate(p, body)


def grade_13a(student):
    """loss and gradient equal one rank's, and a rank sends three numbers a row."""
    for p, n_rows, words in CASES:
        for rank, result in enumerate(student.run(computed, p, n_rows, words)):
            _check(p, rank, n_rows, words, *result)
        yield f"{p} ranks, {n_rows} rows, {words} words: loss, gradient, bytes"


def _check(p, rank, n_rows, words, loss, gradient, n_bytes, same):
    who = f"rank {rank} of {p}"
    x, target = problem(n_rows, words)
    bounds, rows = chunks.bounds(words, p), np.arange(n_rows)
    first, end = bounds[rank : rank + 2]
    own = x[:, first:end]
    if loss.shape != (n_rows,) or gradient.shape != own.shape:
        raise Wrong(f"{who}: wanted a loss of shape ({n_rows},) and a gradient of {own.shape}; got "
                    f"{loss.shape} and {gradient.shape}")
    if not same:
        raise Wrong(f"{who}: logits has changed. It is the caller's array: x - top is a new array")
    if not (np.isfinite(loss).all() and np.isfinite(gradient).all()):
        raise Wrong(f"{who}: the loss or its gradient is not finite. These logits are about "
                    f"{OFFSET:g}, and e^{OFFSET:g} overflows. Subtract the maximum first")
    top = x.max(axis=1)
    e = np.exp(x - top[:, None])
    lse, picked = top + np.log(e.sum(axis=1)), x[rows, target]

    def close(a, b):
        return np.allclose(a, b, rtol=1e-10, atol=1e-10)

    if not close(loss, lse - picked):
        _explain_loss(who, p, loss, x, target, bounds, first, end, close)
    wanted = e / e.sum(axis=1)[:, None]
    softmax = wanted[:, first:end].copy()
    wanted[rows, target] -= 1
    wanted = wanted[:, first:end]
    if not close(gradient, wanted):
        extra = gradient - wanted
        if close(gradient, softmax):
            raise Wrong(f"{who}: the gradient is not yet minus 1 at the target")
        if close(extra, np.round(extra)) and extra.min() < -0.5 and extra.max() < 0.5:
            raise Wrong(f"{who}: a row whose target is on another rank loses 1 here too. Subtract "
                        "the 1 only at the target, on one rank")
        raise Wrong(f"{who}: the gradient is not e^x / (the sum over all words), minus 1 at the "
                    f"target. The largest difference is {np.abs(extra).max():.3g}")
    one, two = (ring.bytes_sent(k * n_rows, 8, p, rank) for k in (1, 2))
    if n_bytes not in (3 * one, one + two):
        whole = ". Did you send another rank's part of the logits?" * (
            n_bytes > 3 * one + two)
        raise Wrong(f"{who} sent {n_bytes:,} bytes; ring all-reduces of three numbers for each row "
                    f"send {3 * one:,}{whole or ': one maximum, two sums'}")


def _explain_loss(who, p, loss, x, target, bounds, first, end, close):
    """Raises Wrong with the mistake that gives this loss."""
    rows, own = np.arange(len(x)), x[:, first:end]
    parts = [x[:, a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    top = x.max(axis=1)
    lse, picked = top + np.log(np.exp(x - top[:, None]).sum(axis=1)), x[rows, target]
    here = (target >= first) & (target < end)
    if p > 1:
        local = sum(np.exp(part - part.max(axis=1)[:, None]).sum(axis=1) for part in parts)
        tops = [part.max(axis=1) for part in parts]
        if any(close(loss, m + np.log(local) - picked) for m in (*tops, top)):
            raise Wrong(f"{who}: each rank has taken its own maximum. Sums of e^(x - maximum) with "
                        "different maxima do not add up. Take the maximum over the ranks first")
        alone = np.log(np.exp(own - top[:, None]).sum(axis=1))
        if close(loss, top + alone - picked) or close(loss, top + alone - picked * here):
            raise Wrong(f"{who}: the sum of exponentials has only this rank's words. Sum it over "
                        "the ranks")
    if close(loss, lse):
        raise Wrong(f"{who}: the target's logit is not subtracted")
    if close(loss, lse - picked * here):
        raise Wrong(f"{who}: if another rank has the target, nothing is subtracted. Get its logit "
                    "from that rank, by a sum in which the other ranks have 0")
    for column in (np.clip, lambda k, low, high: k % (high + 1),
                   lambda k, low, high: np.where((k >= low) & (k <= high), k, 0)):
        added = sum(part[rows, column(target - a, 0, part.shape[1] - 1)]
                    for a, part in zip(bounds[:-1], parts, strict=True))
        if not close(loss, lse - added):
            continue
        raise Wrong(f"{who}: every rank adds a logit for every row. But a target's logit counts "
                    "once, on the rank that has that word, and is 0 on the other ranks")
    raise Wrong(f"{who}: the loss is not log(sum over all words of e^x) - x[target]. The largest "
                f"difference is {np.abs(loss - lse + picked).max():.3g}")


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "13a": {
        "a maximum of its own on every rank": (
            {"top = ring.all_reduce(t, logits.max(axis=1), np.maximum)":
             "top = logits.max(axis=1)"},
            "Take the maximum over the ranks first",
        ),
        "no maximum": (
            {"top = ring.all_reduce(t, logits.max(axis=1), np.maximum)":
             "top = np.zeros(len(target))"},
            "overflows",
        ),
        "the sum of its own words": (
            {"total = ring.all_reduce(t, e.sum(axis=1))": "total = e.sum(axis=1)"},
            "has only this rank's words",
        ),
        "a logit from every rank": (
            {"np.where(here, logits[rows, column], 0.0)": "logits[rows, column]"},
            "every rank adds a logit",
        ),
        "less 1 on every rank": (
            {"gradient[rows[here], column[here]] -= 1": "gradient[rows, column] -= 1"},
            "a row whose target is on another rank loses 1 here",
        ),
        "all logits on all ranks": (
            """
from minidl.comm import ring_blocks
words = ring.all_reduce(t, np.array([logits.shape[1]]))[0]
whole = np.zeros((len(target), words))
whole[:, first : first + logits.shape[1]] = logits
ring.all_reduce(t, whole)
top = whole.max(axis=1)
e = np.exp(whole - top[:, None])
loss = top + np.log(e.sum(axis=1)) - whole[np.arange(len(target)), target]
gradient = e / e.sum(axis=1)[:, None]
gradient[np.arange(len(target)), target] -= 1
return loss, gradient[:, first : first + logits.shape[1]]
""",
            "Did you send another rank's part of the logits?",
        ),
    },
}
