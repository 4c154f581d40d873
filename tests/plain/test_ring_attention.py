"""The page and the real one: the same attention and gradients; the bytes of the formula."""

import numpy as np
import pytest

from minidl.comm import Ledger
from minidl.parallel.model import context
from minidl.plain import ring_attention
from minidl.tensor import Tensor
from tests.conftest import ranks

N_TOKENS, WIDTH = 3, 5  # of each rank


def parts(t, seed=0):
    """q, k, v and the gradient of o of this rank."""
    return np.random.default_rng([seed, t.rank]).normal(size=(4, N_TOKENS, WIDTH))


def real(t, q, k, v, go):
    inputs = [Tensor(a[None, None], True) for a in (q, k, v)]
    o = context.ring_attention(*inputs, t, is_causal=True, order="contiguous")
    o.backward(go[None, None])
    return [a[0, 0] for a in (o.array, *(x.grad.array for x in inputs))]


@ranks(1, 2, 3, 4, 5, 8)
def test_results_and_gradients_are_the_real_ones(t):
    q, k, v, go = parts(t)
    o, lse = ring_attention.forward(t, q, k, v)
    got = o, *ring_attention.backward(t, q, k, v, o, lse, go)
    # float64, at most 24 keys: the same sums, divided at another place
    for ours, theirs in zip(got, real(t, q, k, v, go), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


@ranks(2, 3)
def test_a_rank_alone_is_something_else(t):
    """Negative control: the comparison above depends on the other ranks' keys."""
    q, k, v, go = parts(t)
    if t.rank:
        s = ring_attention.scores(q, k, True)
        p = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        assert abs(p @ v - ring_attention.forward(t, q, k, v)[0]).max() > 0.01
    else:
        ring_attention.forward(t, q, k, v)


@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_are_the_formula(t):
    """The real backward sends all blocks and all sums n-1 times; the page n times."""
    q, k, v, go = parts(t)
    there, back = context.bytes_sent("ring", t.size, 1, N_TOKENS * t.size, WIDTH, 1, None, 8, 8)
    ledger = Ledger(t)
    o, lse = ring_attention.forward(ledger, q, k, v)
    assert ledger.bytes_sent == there
    if t.size > 1:
        ring_attention.backward(ledger, q, k, v, o, lse, go)
        assert (ledger.bytes_sent - there) * (t.size - 1) == back * t.size


def test_merge_of_two_blocks():
    o, lse = ring_attention.merge(1.0, 0.0, 3.0, np.log(3))
    assert (o, lse) == (pytest.approx(2.5), pytest.approx(np.log(4)))
