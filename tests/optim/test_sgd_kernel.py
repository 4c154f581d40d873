"""minidl/optim/sgd.py: the values of minidl/optim/sgd.py, for many arrays at once."""

import numpy as np
import pytest

from minidl.cuda import dispatch
from minidl.cuda.launch import CHUNK, chunk_list, elementwise, pointers
from minidl.optim import SGD, sgd
from minidl.tensor import Tensor
from tests.kernel_arrays import SIZES, normal


def reference(w, g, v, *, first, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0,
              nesterov=False, unscale=1.0):
    """(w, v) after one step, as new arrays; v is what it was without momentum."""
    g = g.astype(w.dtype) * unscale + weight_decay * w
    if not momentum:
        return w - lr * g, v
    v = g if first else momentum * v + (1 - dampening) * g
    return w - lr * (g + momentum * v if nesterov else v), v


LENGTHS = [*SIZES, CHUNK, CHUNK + 1]
CLOSE = {
    "f4": dict(rtol=1e-6, atol=5e-7),
    "f8": dict(rtol=1e-14, atol=1e-14),
}  # a few roundings of numbers near 1
OPTIONS = [
    dict(),
    dict(weight_decay=0.1),
    dict(momentum=0.9),
    dict(momentum=0.9, dampening=0.3, weight_decay=0.1),
    dict(momentum=0.9, nesterov=True, weight_decay=0.1),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_equals_the_formula(dtype, options):
    w, g, v = ([normal(n, dtype, k + i) for i, n in enumerate(LENGTHS)] for k in (0, 100, 200))
    first = [i % 2 == 0 for i in range(len(w))]
    options = dict(lr=0.1, unscale=0.25, **options)
    expected = [
        reference(*(a.astype("f8") for a in arrays), first=f, **options)
        for *arrays, f in zip(w, g, v, first)
    ]
    sgd.by_kernel(w, g, v if "momentum" in options else None, first, **options)
    for i, (ew, ev) in enumerate(expected):
        np.testing.assert_allclose(w[i], ew, **CLOSE[dtype])
        np.testing.assert_allclose(v[i], ev, **CLOSE[dtype])


@pytest.mark.parametrize("options", OPTIONS)
def test_ten_steps_equal_the_optimizer(options):
    shapes = [(3, 5), (), (257,), (0, 2)]
    params = [Tensor(normal(s, "f4", i), requires_grad=True) for i, s in enumerate(shapes)]
    w = [p.array.copy() for p in params]
    v = [np.zeros_like(a) for a in w] if "momentum" in options else None
    opt = SGD(params, lr=0.1, **options)
    for t in range(10):
        for i, p in enumerate(params):
            p.grad = normal(p.shape, "f4", 50 * t + i)
        sgd.by_kernel(w, [p.grad.array for p in params], v, [t == 0] * len(w), lr=0.1, **options)
        opt.step()
    for p, a in zip(params, w):
        np.testing.assert_allclose(a, p.array, rtol=3e-6, atol=2e-6)  # ten steps of the above


def test_fp16_gradients_move_the_fp32_master_and_its_copy():
    w, g = normal(9000, "f4", 1), normal(9000, "f2", 2)
    low = np.full(9000, np.nan, np.float16)
    expected, _ = reference(w, g, None, first=False, lr=1e-4, unscale=0.5)
    sgd.by_kernel([w], [g], lr=1e-4, unscale=0.5, low=[low])
    np.testing.assert_allclose(w, expected, **CLOSE["f4"])
    np.testing.assert_array_equal(low, w.astype(np.float16))


@pytest.mark.parametrize("flag", [0, 1])
def test_skip_leaves_everything_as_it_was(flag):
    w = normal(300, "f4", 1)
    before = w.copy()
    sgd.by_kernel([w], [np.ones(300, np.float32)], skip=np.array([flag], np.int32))
    assert np.array_equal(w, before) == bool(flag)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_other_rungs_give_the_same(momentum):
    n = CHUNK + 5
    w, g, v = normal(n, "f4", 1), normal(n, "f4", 2), normal(n, "f4", 3)
    expected, _ = reference(w, g, v, first=False, lr=0.1, momentum=momentum, weight_decay=0.2)
    if not momentum:
        naive = w.copy()
        elementwise("sgd.cu", "sgd_naive", "f4", n, (naive, g, n, 0.1, 0.2), W="float")
        np.testing.assert_allclose(naive, expected, **CLOSE["f4"])
    tables = [pointers(np, [a], np.float32, "") for a in (w, g, v)]
    if not momentum:
        tables[2] = None
    chunks = chunk_list((n,))
    dispatch.kernel("sgd.cu", "sgd_many", "f4", W="float")(
        len(chunks),
        32,
        (
            *tables,
            None,
            np.array([momentum, 1], np.float32),
            None,
            None,
            0.1,
            momentum,
            0.2,
            1.0,
            0,
            chunks,
            len(chunks),
        ),
    )
    np.testing.assert_allclose(w, expected, **CLOSE["f4"])


def test_wrong_lists_are_named():
    w = [normal(4, "f4", 1)]
    with pytest.raises(ValueError, match="got momentum=0.9, velocities not given"):
        sgd.by_kernel(w, w, momentum=0.9)
    with pytest.raises(ValueError, match="one bool in `first` for each of 1 arrays; got 0"):
        sgd.by_kernel(w, w, w, momentum=0.9)
    with pytest.raises(ValueError, match="sgd: grads 0: want a contiguous|the same sizes"):
        sgd.by_kernel(w, [w[0][:3]])


@pytest.mark.parametrize("at", [0, 1])
def test_a_gpu_takes_packs_of_16_bytes(at):
    """With masters and halves, from an address that is a multiple of 16 and from one that is not:
    what a thread per chunk makes of them."""
    n = CHUNK + 13
    w, v = (normal(n + at, "f4", k)[at:] for k in range(2))
    g, low = normal(n + at, "f2", 3)[at:], np.zeros(n + at, "f2")[at:]
    want = [a.copy() for a in (w, v, low)]
    sgd.by_kernel([want[0]], [g], [want[1]], [False], momentum=0.9, nesterov=True, unscale=0.5,
              low=[want[2]])
    tables = [pointers(np, [a], a.dtype, "") for a in (w, g, v, low)]
    chunks, rates = chunk_list((n,)), np.array([(0.9, 1.0)], np.float32)
    numbers = 1e-3, 0.9, 0.0, 0.5, 1
    dispatch.kernel("sgd.cu", "sgd_many", "f2", W="float")(
        len(chunks), 64, (*tables, rates, None, None, *numbers, chunks, len(chunks)))
    for got, wanted in zip((w, v, low), want, strict=True):
        close = CLOSE["f4"] if got.dtype == "f4" else dict(rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(got, wanted, **close)
