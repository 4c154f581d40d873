"""minidl/optim/adam.py: the values of minidl/optim/adam.py, for many arrays at once."""

import math

import numpy as np
import pytest

from minidl.cuda.launch import CHUNK, elementwise
from minidl.optim import Adam, AdamW, adam
from minidl.tensor import Tensor
from tests.kernel_arrays import SIZES, normal


def reference(w, g, m, v, *, step, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
              decoupled=True, unscale=1.0):
    """(w, m, v) after one step, as new arrays."""
    b1, b2 = betas
    g = g.astype(w.dtype) * unscale
    if not decoupled:
        g = g + weight_decay * w
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    shrink = 1 - lr * weight_decay if decoupled else 1
    w = shrink * w - lr / (1 - b1**step) * (m / (np.sqrt(v) / math.sqrt(1 - b2**step) + eps))
    return w, m, v


LENGTHS = [*SIZES, CHUNK, CHUNK + 1, 3 * CHUNK - 1]
# float32: m and v carry a few roundings a step, w moves by about lr: errors near one place of w
CLOSE = {"f4": dict(rtol=1e-6, atol=1e-7), "f8": dict(rtol=1e-13, atol=1e-14)}


def state(dtype, lengths=LENGTHS):
    w = [normal(n, dtype, i) for i, n in enumerate(lengths)]
    m = [normal(n, dtype, 100 + i) for i, n in enumerate(lengths)]
    v = [np.abs(normal(n, dtype, 200 + i)) for i, n in enumerate(lengths)]
    return w, m, v


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("decoupled", [True, False])
def test_equals_the_formula(dtype, decoupled):
    w, m, v = state(dtype)
    g = [normal(n, dtype, 300 + i) for i, n in enumerate(LENGTHS)]
    steps = [1 + i for i in range(len(g))]  # each array at its own step
    options = dict(
        lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, decoupled=decoupled, unscale=0.5
    )
    expected = [
        reference(*(a.astype("f8") for a in arrays), step=t, **options)
        for *arrays, t in zip(w, g, m, v, steps)
    ]
    kept = [a.copy() for a in g]
    adam.by_kernel(w, g, m, v, steps, **options)
    for i, (ew, em, ev) in enumerate(expected):
        np.testing.assert_allclose(w[i], ew, **CLOSE[dtype])
        np.testing.assert_allclose(m[i], em, **CLOSE[dtype])
        np.testing.assert_allclose(v[i], ev, **CLOSE[dtype])
        np.testing.assert_array_equal(g[i], kept[i])


@pytest.mark.parametrize("optimizer", [Adam, AdamW])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_twenty_steps_equal_the_optimizers(optimizer, weight_decay):
    shapes = [(3, 5), (), (257,), (0, 2), (40, 50)]
    params = [Tensor(normal(s, "f4", i), requires_grad=True) for i, s in enumerate(shapes)]
    w = [p.array.copy() for p in params]
    m, v = [np.zeros_like(a) for a in w], [np.zeros_like(a) for a in w]
    opt = optimizer(params, lr=0.02, weight_decay=weight_decay)
    for t in range(1, 21):
        for i, p in enumerate(params):
            p.grad = normal(p.shape, "f4", 50 * t + i)
        adam.by_kernel(
            w,
            [p.grad.array for p in params],
            m,
            v,
            [t] * len(w),
            lr=0.02,
            weight_decay=weight_decay,
            decoupled=optimizer.decoupled,
        )
        with np.errstate(all="raise"):
            opt.step()
    for p, a in zip(params, w):
        # twenty steps, each a few roundings of a number near 1
        np.testing.assert_allclose(a, p.array, rtol=2e-6, atol=1e-6)


def test_fp16_gradients_move_the_fp32_master_and_its_copy():
    w, m, v = state("f4", (5, 9000))
    g = [normal(a.size, "f2", 7) for a in w]
    low = [np.full(a.size, np.nan, np.float16) for a in w]
    expected = [reference(*a, step=3, lr=1e-5, unscale=1 / 1024) for a in zip(w, g, m, v)]
    adam.by_kernel(w, g, m, v, [3, 3], lr=1e-5, unscale=1 / 1024, low=low)
    for i, (ew, _, _) in enumerate(expected):
        np.testing.assert_allclose(w[i], ew, **CLOSE["f4"])
        np.testing.assert_array_equal(low[i], w[i].astype(np.float16))
    assert not np.array_equal(
        w[1], state("f4", (5, 9000))[0][1]
    )  # moved by less than fp16 can hold


@pytest.mark.parametrize("flag", [0, 1])
def test_skip_leaves_everything_as_it_was(flag):
    w, m, v = state("f4", (300,))
    before = [a[0].copy() for a in (w, m, v)]
    adam.by_kernel(
        w,
        [np.full(300, np.inf if flag else 1, np.float32)],
        m,
        v,
        [1],
        skip=np.array([flag], np.int32),
    )
    assert all(np.array_equal(a[0], b) == bool(flag) for a, b in zip((w, m, v), before))


def test_the_other_rungs_give_the_same():
    lengths = (300, CHUNK + 5)
    (w, m, v), g = state("f4", lengths), [normal(n, "f4", 9) for n in lengths]
    naive = [[a.copy() for a in arrays] for arrays in (w, m, v)]
    block = [[a.copy() for a in arrays] for arrays in (w, m, v)]
    adam.by_kernel(w, g, m, v, [2, 2])
    b1, b2 = 0.9, 0.999
    rates = (1e-3 / (1 - b1**2), 1 / np.sqrt(1 - b2**2))
    common = (b1, 1 - b1, b2, 1 - b2, 1e-8, 1 - 1e-5, 0.0, 1.0)
    for i, n in enumerate(lengths):
        elementwise(
            "adamw.cu",
            "adamw_naive",
            "f4",
            n,
            (naive[0][i], g[i], naive[1][i], naive[2][i], n, *map(float, rates), *common),
            W="float",
        )
    from minidl.cuda import dispatch
    from minidl.cuda.launch import chunk_list, pointers

    tables = [pointers(np, a, np.float32, "") for a in (block[0], g, block[1], block[2])]
    chunks = chunk_list(lengths)
    dispatch.kernel("adamw.cu", "adamw_many", "f4", W="float")(
        len(chunks),
        32,
        (*tables, None, np.array([rates, rates], np.float32), None, None, *common, chunks,
             len(chunks)),
    )
    for ours, a, b in zip((w, m, v), naive, block):
        for i in range(2):
            np.testing.assert_allclose(
                a[i], ours[i], **CLOSE["f4"]
            )  # other loops may fuse other products
            np.testing.assert_allclose(b[i], ours[i], **CLOSE["f4"])


def test_transposed_gradients_are_read_in_order():
    w, m, v = state("f4", (12,))
    w, m, v = ([a[0].reshape(3, 4)] for a in (w, m, v))
    g = normal((4, 3), "f4", 1).T
    expected, _, _ = reference(w[0], g, m[0], v[0], step=1)
    adam.by_kernel(w, [g], m, v, [1])
    np.testing.assert_allclose(w[0], expected, **CLOSE["f4"])


def test_wrong_lists_are_named():
    w, m, v = state("f4", (4, 6))
    with pytest.raises(ValueError, match=r"adamw: .*\[4, 6\] and of \[4, 5\]"):
        adam.by_kernel(w, [w[0], w[1][:5]], m, v, [1, 1])
    with pytest.raises(ValueError, match="one step count for each of 2 arrays; got 1"):
        adam.by_kernel(w, w, m, v, [1])
    with pytest.raises(
        ValueError, match="adamw: exp_avgs 1: want a contiguous array of float32; got float64"
    ):
        adam.by_kernel(w, w, [m[0], m[1].astype("f8")], v, [1, 1])
    with pytest.raises(ValueError, match="adamw: weights 0: want a contiguous array"):
        adam.by_kernel(
            [np.zeros((3, 4), np.float32).T],
            [np.zeros(12, np.float32)],
            [np.zeros(12, np.float32)],
            [np.zeros(12, np.float32)],
            [1],
        )
    adam.by_kernel([], [], [], [], [])


@pytest.mark.parametrize("at", [0, 1])
def test_a_gpu_takes_packs_of_16_bytes(at):
    """With masters and halves, from an address that is a multiple of 16 and from one that is not:
    what a thread per chunk makes of them."""
    from minidl.cuda import dispatch
    from minidl.cuda.launch import chunk_list, pointers

    n = CHUNK + 13
    w, m, v = (normal(n + at, "f4", k)[at:] for k in range(3))
    v *= v
    g, low = normal(n + at, "f2", 3)[at:], np.zeros(n + at, "f2")[at:]
    want = [a.copy() for a in (w, m, v, low)]
    adam.by_kernel([want[0]], [g], [want[1]], [want[2]], [2], low=[want[3]], unscale=0.5)
    b1, b2 = 0.9, 0.999
    rates = np.array([(1e-3 / (1 - b1**2), 1 / np.sqrt(1 - b2**2))], np.float32)
    tables = [pointers(np, [a], a.dtype, "") for a in (w, g, m, v, low)]
    chunks = chunk_list((n,))
    numbers = b1, 1 - b1, b2, 1 - b2, 1e-8, 1 - 1e-5, 0.0, 0.5
    dispatch.kernel("adamw.cu", "adamw_many", "f2", W="float")(
        len(chunks), 64, (*tables, rates, None, None, *numbers, chunks, len(chunks)))
    for got, wanted in zip((w, m, v, low), want, strict=True):
        close = dict(rtol=1e-6, atol=1e-7) if got.dtype == "f4" else dict(rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(got, wanted, **close)  # products and sums are joined, or not
