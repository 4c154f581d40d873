"""The elementwise and optimizer kernels on a GPU compute what they compute on the CPU."""

import numpy as np
import pytest

from minidl import optim, random, use_fused
from minidl.cuda import grad_norm, unscale_check
from minidl.nn import functional as F
from minidl.ops import add3, embedding
from minidl.ops.extra import quantize
from minidl.optim import adam, sgd
from minidl.parallel.data import flat, topk_mask
from minidl.tensor import Tensor
from tests.kernel_arrays import normal

pytestmark = pytest.mark.gpu
# other instructions for e^x, other orders of sums; a rounding or two of the result in float16
CLOSE = {"f4": dict(rtol=1e-5, atol=1e-5), "f2": dict(rtol=3e-3, atol=3e-3)}


def both(work, *arrays):
    """work(*arrays) on the CPU and on the GPU, the second brought back: two lists of arrays."""
    import cupy

    there = work(*(cupy.asarray(a) for a in arrays))
    return work(*(a.copy() for a in arrays)), [cupy.asnumpy(a) for a in there]


def assert_same(work, *arrays, dtype="f4"):
    for here, there in zip(*both(work, *arrays), strict=True):
        assert here.dtype == there.dtype
        np.testing.assert_allclose(there, here, **CLOSE[dtype])


FUNCTIONS = {
    "add3": (add3.add3, [(67, 129)] * 3),
    "gelu": (F.gelu, [(67, 129)]),
    "gelu tanh": (lambda x: F.gelu(x, "tanh"), [(67, 129)]),
    "dropout": (lambda x: F.dropout(x, 0.3, generator=random.Generator(3)), [(67, 129)]),
    "softmax": (lambda x: F.softmax(x, -1), [(67, 129)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 129, w, b), [(67, 129), (129,), (129,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, 129, w), [(67, 129), (129,)]),
}


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_backward(name, dtype):
    op, shapes = FUNCTIONS[name]

    def work(g, *arrays):
        inputs = [Tensor(a, requires_grad=True) for a in arrays]
        y = op(*inputs)
        y.backward(g)
        return [y.array, *(x.grad.array for x in inputs)]

    arrays = [normal(s, dtype, i) for i, s in enumerate([shapes[0], *shapes])]
    assert_same(work, *arrays, dtype=dtype)


# rows of 2, 8 and up to 32 elements a lane, and one that a block takes; heads of every width
ROWS = (64, 256, 768, 3072)
WIDTHS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1], w, b), 3, ROWS),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1], w), 2, ROWS),
    "softmax": (lambda x: F.softmax(x, -1), 1, ROWS),
    "log_softmax": (lambda x: F.log_softmax(x, -1), 1, ROWS),
    "cross_entropy": (lambda x: F.cross_entropy(x, Tensor(x._xp.arange(3))), 1, (10, 256, 5000)),
    "attention": (lambda x: F.scaled_dot_product_attention(
        *[x.reshape(1, 3, 1, -1)] * 3, is_causal=True), 1, (16, 32, 64, 80, 128)),
}


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("name", WIDTHS)
def test_the_widths_that_training_meets(name, dtype):
    op, n_inputs, widths = WIDTHS[name]

    def work(*arrays):
        inputs = [Tensor(a, requires_grad=True) for a in arrays]
        y = op(*inputs)
        g = y._xp.cos(y._xp.arange(y.array.size, dtype="f4"))  # of both signs, and the same on both
        y.backward(g.astype(y.dtype).reshape(y.shape))
        return [y.array, *(x.grad.array for x in inputs)]

    for width in widths:
        shapes = [(3, width), (width,), (width,)][:n_inputs]
        assert_same(work, *(normal(s, dtype, i) for i, s in enumerate(shapes)), dtype=dtype)


def test_embedding_gradient_adds_in_the_order_of_the_positions():
    index = np.random.default_rng(0).integers(0, 50, 1000)
    gy = np.round(8 * normal((1000, 70), "f4", 1))  # integers: exact in any order
    here, there = both(lambda i, g: [embedding.by_kernel(i, g, 50)], index, gy)
    np.testing.assert_array_equal(here[0], there[0])


def test_optimizers_with_masters_and_skip():
    arrays = [normal(n, "f4", n + k) ** 2 for k in range(3) for n in (5, 20000)]
    grads, low = [normal(n, "f2", n) for n in (5, 20000)], [np.zeros(n, "f2") for n in (5, 20000)]

    def work(*given):
        w, m, v, g, out = (list(given[2 * k : 2 * k + 2]) for k in range(5))
        bad = unscale_check.count_bad(g)
        adam.by_kernel(w, g, m, v, [3, 4], unscale=0.5, low=out, skip=bad)
        sgd.by_kernel(w, g, v, [True, False], momentum=0.9, lr=0.01, low=out, skip=bad)
        return [*w, *m, *v, *out, bad]

    assert_same(work, *arrays, *grads, *low, dtype="f2")


@pytest.mark.parametrize("make", [optim.LARS, optim.LAMB])
@pytest.mark.parametrize("fused", [True, False])
def test_rates_from_whole_tensors(make, fused):
    """Three steps, of which a GPU skips the second by itself; a state that is loaded."""
    def work(*arrays):
        params = [Tensor(a, requires_grad=True) for a in arrays[:2]]
        optimizer = make(params, lr=0.1)
        for t in range(3):
            for p, g in zip(params, arrays[2:]):
                p.grad = (t + 1) * g
            bad = unscale_check.count_bad([params[0].grad.array])
            bad[...] = t == 1
            with use_fused(fused):
                optimizer.step(unscale=0.5, skip=bad)
            optimizer.load_state_dict(optimizer.state_dict())
        return [p.array for p in params]

    assert_same(work, *(normal(n, "f4", k) for k in (1, 3) for n in ((5, 7), (20000,))))


def test_passes_over_many_arrays():
    def work(a, b, whole):
        flat.pack([a, b], whole)
        total = grad_norm.two_norm([a, b])
        bad = unscale_check.unscale_check([a, b], 0.5)
        return [whole, a, b, bad, bad + total]

    assert_same(work, normal(5, "f4", 1), normal((100, 200), "f4", 2), np.empty(20005, "f4"))


def test_compaction_and_quantisation():
    def work(x, m):
        index, value = topk_mask.compact(x, 1.0)
        topk_mask.drop(x, 1.0)
        (q, scale), (q1, scale1) = quantize.quantize(m, True), quantize.quantize(m)
        return [index, value, x, q, scale, q1, scale1, quantize.dequantize(q, scale)]

    assert_same(work, normal(30000, "f4", 1), normal((33, 70), "f4", 2))


@pytest.mark.gpu
def test_a_table_that_one_stream_uploads_another_one_waits_for():
    import cupy

    from minidl.cuda.launch import on_device

    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    table = np.arange(20261122, 20261122 + 7)  # nobody else's
    with first:
        there = on_device(cupy, table)
    with second:
        assert on_device(cupy, table) is there  # uploaded once
        total = there.sum()
    second.synchronize()
    assert int(total) == table.sum()
