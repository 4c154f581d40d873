"""minidl/optim/lamb.py: moments, norms and steps of many arrays at once."""

import math

import numpy as np
import pytest

from minidl.cuda import dispatch
from minidl.cuda.launch import CHUNK, chunk_list, pointers
from minidl.optim import lamb
from tests.kernel_arrays import SIZES, normal


def reference(w, g, m, v, *, step, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
    """(w, m, v) after one step of the paper's LAMB, as new arrays."""
    b1, b2 = betas
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    r = m / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps) + weight_decay * w
    lengths = [math.sqrt(float((a.astype(np.float64) ** 2).sum())) for a in (w, r)]
    ratio = lengths[0] / lengths[1] if all(lengths) else 1.0
    return w - lr * ratio * r, m, v


LENGTHS = [*SIZES[1:], CHUNK, CHUNK + 1, 3 * CHUNK - 1]
# a few roundings of numbers near 1; sums of 8192 squares in float32
CLOSE = {"f4": dict(rtol=4e-6, atol=1e-6), "f8": dict(rtol=1e-13, atol=1e-13)}
OPTIONS = dict(eps=1e-6, weight_decay=0.1)


def state(dtype, lengths=LENGTHS):
    w, g, m = ([normal(n, dtype, k + i) for i, n in enumerate(lengths)] for k in (0, 100, 200))
    return w, g, m, [np.abs(normal(n, dtype, 300 + i)) for i, n in enumerate(lengths)]


def rates(steps, b1=0.9, b2=0.999):
    t = np.array(steps, np.float64)
    return np.stack([1 / (1 - b1**t), 1 / np.sqrt(1 - b2**t)], 1)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_equals_the_formula(dtype):
    w, g, m, v = state(dtype)
    steps = [1 + i for i in range(len(w))]  # each array at its own step
    expected = [reference(*(a.astype("f8") for a in arrays), step=t, lr=0.1, weight_decay=0.1)
                for *arrays, t in zip(w, g, m, v, steps)]
    two = rates(steps)
    w2, r2 = lamb.moments_by_kernel(w, [2 * a for a in g], m, v, two, betas=(0.9, 0.999),
                                    unscale=0.5, **OPTIONS)
    np.testing.assert_allclose(w2, [(a.astype("f8") ** 2).sum() for a in w], rtol=2e-6)
    lamb.update_by_kernel(w, m, v, two, 0.1 * np.sqrt(w2 / r2), **OPTIONS)
    for i, want in enumerate(expected):
        for got, a in zip((w[i], m[i], v[i]), want):
            np.testing.assert_allclose(got, a, **CLOSE[dtype])


def test_fp16_copies_are_written_and_a_skip_changes_nothing():
    for flag in (0, 1):
        w, g, m, v = state("f4", (5, 9000))
        before = [[a.copy() for a in arrays] for arrays in (w, m, v)]
        low = [np.full(a.size, np.nan, np.float16) for a in w]
        skip, half = np.array([flag], np.int32), [a.astype("f2") for a in g]
        lamb.moments_by_kernel(w, half, m, v, rates([1, 1]), betas=(0.9, 0.999), skip=skip,
                      factor=np.array([0.5], "f4"), **OPTIONS)
        lamb.update_by_kernel(w, m, v, rates([1, 1]), np.ones(2), low=low, skip=skip, **OPTIONS)
        for arrays, old in zip((w, m, v), before):
            for a, b in zip(arrays, old):
                assert np.array_equal(a, b) == bool(flag)
        for a, b in zip(low, w):
            assert np.isnan(a).all() if flag else np.array_equal(a, b.astype("f2"))


def test_the_rungs_for_a_gpu_give_the_same():
    lengths = (300, CHUNK + 5)
    w, g, m, v = state("f4", lengths)
    mine = [[a.copy() for a in arrays] for arrays in (w, m, v)]
    two = rates([2, 3])
    w2, r2 = lamb.moments_by_kernel(w, g, m, v, two, betas=(0.9, 0.999), **OPTIONS)
    lamb.update_by_kernel(w, m, v, two, np.array([0.1, 0.2]), **OPTIONS)

    chunks = chunk_list(lengths)
    n = len(chunks)
    tables = [pointers(np, a, np.float32, "") for a in mine]
    partial = np.empty((n, 2), np.float32)
    run = {name: dispatch.kernel("lamb.cu", f"lamb_{name}_many", "f4", W="float")
           for name in ("moments", "update")}
    run["moments"](n, 32, (partial, tables[0], pointers(np, g, np.float32, ""), *tables[1:],
                           two.astype("f4"), None, None, 0.9, 1 - 0.9, 0.999, 1 - 0.999, 0.0, 1e-6,
                           0.1, 1.0, chunks, n))
    three = np.concatenate([two, [[0.1], [0.2]]], 1).astype("f4")
    run["update"](n, 32, (*tables, None, three, None, 0.0, 1e-6, 0.1, chunks, n))
    sums = [partial[:1].sum(0, dtype="f8"), partial[1:].sum(0, dtype="f8")]
    np.testing.assert_allclose(sums, np.stack([w2, r2], 1), rtol=2e-6)
    for arrays, others in zip(mine, (w, m, v)):
        for a, b in zip(arrays, others):
            np.testing.assert_allclose(a, b, **CLOSE["f4"])


def test_wrong_lists_are_named():
    w = [normal(4, "f4", 1)]
    with pytest.raises(ValueError, match="lamb: wanted lists of arrays with the same sizes"):
        lamb.moments_by_kernel(w, [w[0][:3]], w, w, rates([1]), betas=(0.9, 0.999), **OPTIONS)
