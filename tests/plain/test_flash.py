"""The page, the real attention, and its kernel where there is a compiler: the same outputs and
gradients; and the page before it, which has all scores at once."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.plain import flash
from minidl.plain.attention import softmax
from minidl.plain.autograd import Tensor, grad

N_QUERIES, N_KEYS, WIDTH = 70, 90, 5


def inputs():
    rng = np.random.default_rng(3)
    q, go = rng.normal(size=(2, N_QUERIES, WIDTH))
    k, v = rng.normal(size=(2, N_KEYS, WIDTH))
    return q * 5, k, v, go  # scores of some 5: blocks with very different largest scores


def plain(q, k, v, go, block):
    o, lse = flash.forward(q, k, v, block)
    return o, *flash.backward(go, q, k, v, o, lse, block)


def real(q, k, v, go, dtype):
    leaves = [minidl.tensor(x[None, None].astype(dtype), requires_grad=True) for x in (q, k, v)]
    o = F.scaled_dot_product_attention(*leaves)
    (o * minidl.tensor(go.astype(dtype))).sum().backward()
    return [x.numpy()[0, 0] for x in (o.detach(), *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("block", [1, 7, 64, 90, 200])
def test_outputs_and_gradients_are_the_real_ones(block):
    for ours, want in zip(plain(*inputs(), block), real(*inputs(), "f8"), strict=True):
        # float64: sums of 90 terms in another order, exponentials of differences of some 10
        np.testing.assert_allclose(ours, want, rtol=1e-11, atol=1e-12)


def test_the_kernel_in_float32_is_near():
    for ours, want in zip(plain(*inputs(), 16), real(*inputs(), "f4"), strict=True):
        # scores of size 20 have errors of 20 u = 1e-6, and so have their exponentials
        np.testing.assert_allclose(ours, want, rtol=2e-5, atol=2e-5)


def test_it_is_the_attention_of_the_page_before():
    q, k, v, go = inputs()
    leaves = [Tensor(x) for x in (q, k, v)]
    o = softmax(leaves[0] @ leaves[1].swap() / WIDTH**0.5) @ leaves[2]
    wanted = o, *grad((o * go).sum(), leaves)
    for ours, want in zip(plain(*inputs(), 32), wanted, strict=True):
        np.testing.assert_allclose(ours, want.array, rtol=1e-11, atol=1e-12)


def test_large_scores_do_not_overflow():
    q, k, v, go = inputs()
    for x in plain(q * 1e4, k, v, go, 8):
        assert np.isfinite(x).all()
