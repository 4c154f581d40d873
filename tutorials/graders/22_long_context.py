"""Grades work/22_long_context.py.   Test: tests/tutorials/test_exercises.py"""

import contextlib
import warnings

import numpy as np

from minidl.course.grade import Wrong
from minidl.course.student import Hidden

SEED = 0  # `minidl check --student NAME` sets another one for each student

HEADS, WIDTH = 2, 4
# {name: (places of the queries, places of the keys)}
PLACES = {
    "a whole text": (range(7), range(7)),
    "a block of an earlier rank": (range(8, 12), range(4)),
    "a block of a later rank": (range(4), range(8, 13)),
    "zigzag, some queries see no key": ([0, 1, 6, 7], [2, 3, 4, 5]),
}


def inputs(name, scale):
    """Returns (q, k, v, at_q, at_k). With scale 500 the scores are in the thousands."""
    at_q, at_k = (np.array(places) for places in PLACES[name])
    rng = np.random.default_rng(SEED + len(name))
    q = rng.normal(size=(HEADS, len(at_q), WIDTH)) * scale
    k, v = rng.normal(size=(2, HEADS, len(at_k), WIDTH))
    return q, k, v, at_q, at_k


def called(module, function, arguments):
    """Returns (results, warnings, True if the arguments were not changed)."""
    kept = [a.copy() for a in arguments]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        results = [np.array(a) for a in getattr(module, function)(*arguments)]
    same = all(np.array_equal(a, b) for a, b in zip(arguments, kept, strict=True))
    return results, [str(w.message) for w in heard], same


def grade_22a(student):
    """o and lse of a block, for any places, and for scores in the thousands."""
    results = {}
    for name in PLACES:
        for scale in (1, 500):
            who, arguments = f"{name}, scores of about {scale}", inputs(name, scale)
            results[name, scale] = student.run(called, "block", arguments)
            _check_rows(who, arguments, *results[name, scale])
        yield f"{name}: rows that see nothing, no overflow"
    for (name, scale), result in results.items():
        _check_block(f"{name}, scores of about {scale}", inputs(name, scale), *result)
    yield "o and log-sum-exp, small scores and large"


def _check_rows(who, arguments, results, heard, same):
    """Checks the rows without keys, overflow, and that no argument was changed."""
    q, k, v, at_q, at_k = arguments
    o, lse = _two(who, results, q.shape)
    if not same:
        raise Wrong(f"{who}: an argument was changed. All belong to the caller: make new arrays")
    blind = np.broadcast_to(~(at_q[:, None] >= at_k).any(1), lse.shape)
    if np.isfinite(lse[blind]).any():
        raise Wrong(f"{who}: a query that sees no key of the block has an lse that is not -inf: "
                    "compare at_q with at_k, the places in the text, not places in the block")
    if np.isnan(o[blind]).any() or np.isnan(lse[blind]).any() or not (lse[blind] == -np.inf).all():
        raise Wrong(f"{who}: a query that sees no key of the block needs o = 0 and lse = -inf. Its "
                    "maximum is -inf, and -inf - (-inf) is nan. Use 0 instead of this maximum")
    if o[blind].any():
        raise Wrong(f"{who}: the o of a query that sees no key is not 0")
    if np.isnan(o).any() or np.isposinf(lse).any():
        raise Wrong(f"{who}: e^score overflows: subtract each row's maximum first")


# >>> reference
def reference(q, k, v, at_q, at_k):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH)
    sees = at_q[:, None] >= at_k
    o, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for h, i in np.ndindex(*lse.shape):
        row = s[h, i, sees[i]]
        if row.size:
            p = np.exp(row - row.max())
            o[h, i], lse[h, i] = p @ v[h, sees[i]] / p.sum(), row.max() + np.log(p.sum())
    return o, lse


def _check_block(who, arguments, results, heard, same):
    (o, lse), (want, want_lse) = results, reference(*arguments)
    blind = want_lse == -np.inf
    for name, other in _other_blocks(*arguments):
        if _close(o, other[0]) and not _close(o, want):
            raise Wrong(f"{who}: {name}")
    if not _close(o, want):
        raise Wrong(f"{who}: o is not softmax(q k^T / sqrt(e)) v over the keys that a query sees. "
                    "Is it divided by the sum of e^score of each row?")
    if not _close(lse[~blind], want_lse[~blind]):
        raise Wrong(f"{who}: lse is not the log of the sum of e^score. The maximum that was "
                    "subtracted has to be added to the log")
    if heard:
        raise Wrong(f"{who}: NumPy warns: {heard[0]}. In a row without keys, do not take the log "
                    "of 0 or divide by 0")


def _other_blocks(q, k, v, at_q, at_k):
    """Yields for each common mistake (hint, (o, lse))."""
    here = np.arange(len(at_q)), np.arange(len(at_k))
    yield ("the mask counts places from 0 in each block: compare at_q with at_k, the places in the "
           "text"), reference(q, k, v, *here)
    yield "a query sees its own place, too: >=, not >", reference(q, k, v, at_q, at_k + 1)
    yield "scores are q k^T / sqrt(e)", reference(q * np.sqrt(WIDTH), k, v, at_q, at_k)
    yield "every query sees every key: there is no mask", reference(q, k, v, at_q * 0, at_k * 0)
# <<<


def parts(case, dtype):
    """Returns (o1, lse1, o2, lse2). In cases 3 to 5 some rows saw no key in a part or in both."""
    rng = np.random.default_rng(SEED + case)
    o1, o2 = rng.normal(size=(2, HEADS, 5, WIDTH)).astype(dtype)
    lse1, lse2 = rng.normal(size=(2, HEADS, 5)) * 2 + (0, 1000, -1000)[case % 3]
    if case > 2:
        for rows, lse, o in (([0, 1], lse1, o1), ([1, 2], lse2, o2)):
            lse[:, rows], o[:, rows] = -np.inf, 0
    wide = np.float32 if dtype == np.float16 else np.float64
    return o1, lse1.astype(wide), o2, lse2.astype(wide)


def grade_22b(student):
    """the merged o and lse, also for rows that saw no key and for float16."""
    golden = (np.ones((1, 1, 1)), np.zeros((1, 1)), np.full((1, 1, 1), 3.0), np.log([[3.0]]))
    cases = {"results 1 and 3, lse 0 and ln 3": golden}
    for dtype in (np.float64, np.float16):
        for case in range(6):
            what = ("", ", lse of 1000", ", lse of -1000")[case % 3]
            rows = ", rows without keys" if case > 2 else ""
            cases[f"{np.dtype(dtype)}{what}{rows}"] = parts(case, dtype)
    results = {}
    for who, arguments in cases.items():
        results[who] = student.run(called, "merge", arguments)
        _check_dtype(who, arguments, *results[who])
        if arguments is golden:
            (o, lse), what = results[who][0], "2.5 and ln 4"
            if not np.allclose([o.item(), lse.item()], [2.5, np.log(4)], rtol=0, atol=1e-14):
                with contextlib.suppress(Hidden):
                    _check_merge(who, arguments, *results[who])
                raise Wrong(f"{who}: wanted {what}; got {o.item():.6g} and {lse.item():.6g}")
            yield f"1 and 3 with lse 0 and ln 3: {what}"
    yield "no nan if both parts saw no key or lse is 1000; float16 merged in float32"
    for who, arguments in cases.items():
        _check_merge(who, arguments, *results[who])
    yield "float64 and float16: lse around 0, 1000 and -1000, rows that saw no key"


def _check_dtype(who, arguments, results, heard, same):
    """Checks the rows without keys, overflow, the dtype, and that no argument was changed."""
    o1, lse1, _, lse2 = arguments
    o, lse = _two(who, results, o1.shape)
    if not same:
        raise Wrong(f"{who}: an argument was changed. Return new arrays")
    blind = (lse1 == -np.inf) & (lse2 == -np.inf)
    if np.isnan(o).any() or np.isnan(lse).any() or o[blind].any():
        raise Wrong(f"{who}: a result is nan, or o is not 0 in a row without keys. If both parts "
                    "saw no key, -inf - (-inf) is nan: the result is 0 and -inf. If lse is 1000, "
                    "e^lse is inf")
    if not np.isfinite(o).all() or np.isposinf(lse).any():
        raise Wrong(f"{who}: e^lse overflows: subtract the larger lse first, or use np.logaddexp")
    if o.dtype != lse1.dtype:
        raise Wrong(f"{who}: wanted o in {lse1.dtype}, the dtype of lse; got {o.dtype}. Each merge "
                    "in float16 rounds again")


# >>> reference
def _check_merge(who, arguments, results, heard, same):
    o1, lse1, o2, lse2 = arguments
    o, lse = results
    top = np.maximum(lse1, lse2).astype(np.float64)
    top[top == -np.inf] = 0
    w1, w2 = np.exp(lse1 - top), np.exp(lse2 - top)
    total = np.where(w1 + w2, w1 + w2, 1)
    want = (w1[..., None] * o1.astype("f8") + w2[..., None] * o2.astype("f8")) / total[..., None]
    blind = (w1 + w2) == 0
    want_lse = np.where(blind, -np.inf, top + np.log(total))
    # lse, and so the weights, are rounded; the error grows with |lse|
    allowed = 8 * float(np.finfo(lse1.dtype).eps) * max(1, np.abs(top).max())
    if not np.allclose(lse, want_lse, rtol=0, atol=allowed):
        raise Wrong(f"{who}: lse is not log(e^lse1 + e^lse2)")
    if not np.allclose(o, want, rtol=0, atol=allowed):
        exchanged = (w2[..., None] * o1 + w1[..., None] * o2) / total[..., None]
        if np.allclose(o, exchanged, atol=1e-3):
            raise Wrong(f"{who}: the weights are exchanged: o1 has the weight e^(lse1 - L)")
        if np.allclose(o, want, rtol=0, atol=4e-3):
            raise Wrong(f"{who}: o is off by {np.abs(o - want).max():.1e}. Something was rounded "
                        f"to float16: add in {lse1.dtype}")
        if np.allclose(o, (o1 + o2.astype("f8")) / 2, atol=1e-3):
            raise Wrong(f"{who}: this is the plain mean. A part with a larger lse has more weight")
        if np.allclose(o, want * total[..., None], atol=1e-3):
            raise Wrong(f"{who}: the weights do not add up to 1. They are e^(lse - L) with "
                        "L = log(e^lse1 + e^lse2)")
        raise Wrong(f"{who}: o is not e^(lse1 - L) o1 + e^(lse2 - L) o2")
    if heard:
        raise Wrong(f"{who}: NumPy warns: {heard[0]}. Use 0 in place of an L of -inf")
# <<<


def _two(who, results, shape):
    if len(results) != 2 or results[0].shape != shape or results[1].shape != shape[:-1]:
        raise Wrong(f"{who}: wanted o of shape {shape} and lse of shape {shape[:-1]}; got "
                    f"{' and '.join(str(a.shape) for a in results)}")
    return results


def _close(a, b):
    return np.allclose(a, b, rtol=1e-10, atol=1e-10)  # float64, at most 13 terms


SAFE = "safe = np.where(both == -np.inf, 0, both)\n"

WRONG = {
    "22a": {
        "exponent without the maximum": ({"top = np.where(sees, top, 0)\n": "top = 0 * sees\n"},
                                         "e^score overflows"),
        "mask by local position": (
            {"at_q[:, None] >= at_k": "np.arange(len(at_q))[:, None] >= np.arange(len(at_k))"},
            "compare at_q with at_k"),
        "a query does not see itself": ({"at_q[:, None] >= at_k": "at_q[:, None] > at_k"},
                                        "its own place, too"),
        "no scale": ({" / np.sqrt(q.shape[-1])": ""}, "q k^T / sqrt(e)"),
        "the maximum is not put back": ({"top + np.log(total)": "np.log(total)"},
                                        "has to be added to the log"),
        "o is not divided": ({"p @ v / total": "p @ v"}, "divided by the sum"),
        "nan where nothing is seen": ({"top = np.where(sees, top, 0)\n": ""}, "sees no key"),
    },
    "22b": {
        "merged in float16": (
            {"return w1 * o1 + w2 * o2, both":
             "return w1.astype(o1.dtype) * o1 + w2.astype(o2.dtype) * o2, both"},
            "Each merge in float16 rounds again"),
        "without the maximum": (
            {"both = np.logaddexp(lse1, lse2)\n": "both = np.log(np.exp(lse1) + np.exp(lse2))\n"},
            "e^lse"),
        "weights exchanged": ({"w1 * o1 + w2 * o2": "w2 * o1 + w1 * o2"}, "are exchanged"),
        "nan where both saw nothing": ({SAFE: "safe = both\n"}, "nan"),
        "plain mean": ({"w1 * o1 + w2 * o2": "(lse1[..., None] * 0 + o1 + o2) / 2"},
                       "this is the plain mean"),
        "lse added": ({"o2, both": "o2, lse1 + lse2"}, "log(e^lse1 + e^lse2)"),
    },
}
