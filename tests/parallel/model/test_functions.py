"""Collectives inside the graph: values, gradients across ranks, bytes."""

import functools
import weakref

import numpy as np
import pytest

from minidl.comm import chunks, ring, ring_blocks, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.memory.recompute import recompute
from minidl.parallel.model import functions as F
from minidl.plain import naive
from minidl.tensor import Tensor
from tests.conftest import ranks
from tests.parallel.model.across import gradcheck_across

WHOLE = 7  # along the dimension that is cut: not divided by 2, 3, 4, 5, 8


def whole_of(shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def blocks(x, n, dim):
    return np.split(x, chunks.bounds(x.shape[dim], n)[1:-1], dim)


def mine(t, shape):
    return np.random.default_rng([2, t.rank]).normal(size=shape)


def summed(t, x):
    return naive.all_reduce(t, x.copy())


def bend(fn):
    """Something with a gradient of its own before and after."""
    return lambda x: (fn(x * x) * 0.5).sin()


@ranks(1, 2, 3, 4, 5, 8)
def test_copy_and_all_reduce_are_a_pair(t):
    same, own = whole_of((2, 3)), mine(t, (2, 3))
    assert (F.copy(t, Tensor(same)).array == same).all()
    np.testing.assert_allclose(F.all_reduce(t, Tensor(own)).array, summed(t, own), rtol=1e-14)
    gradcheck_across(t, bend(functools.partial(F.copy, t)), same, True, False)
    gradcheck_across(t, bend(functools.partial(F.all_reduce, t)), own, False, True)


@pytest.mark.parametrize("dim", [0, 1, -1])
@ranks(1, 2, 3, 4, 5, 8)
def test_scatter_and_gather_are_a_pair(t, dim):
    shape = [1, 2, 1]
    shape[dim] = WHOLE
    same = whole_of(shape)
    own = blocks(same, t.size, dim)[t.rank]
    assert (F.scatter(t, Tensor(same), dim).array == own).all()
    gather = functools.partial(F.gather, t, dim=dim, length=WHOLE)
    assert (gather(Tensor(own)).array == same).all()
    gradcheck_across(t, bend(functools.partial(F.scatter, t, dim=dim)), same, True, False)
    gradcheck_across(t, bend(gather), own, False, True)


@pytest.mark.parametrize("dim", [0, 1, -1])
@ranks(1, 2, 3, 4, 5, 8)
def test_all_gather_and_reduce_scatter_are_a_pair(t, dim):
    shape = [1, 2, 1]
    shape[dim] = WHOLE
    same, other = whole_of(shape), mine(t, shape)
    own = blocks(same, t.size, dim)[t.rank]
    gather = functools.partial(F.all_gather, t, dim=dim, length=WHOLE)
    assert (gather(Tensor(own)).array == same).all()
    total = blocks(summed(t, other), t.size, dim)[t.rank]
    got = F.reduce_scatter(t, Tensor(other), dim).array
    np.testing.assert_allclose(got, total, rtol=1e-13, atol=1e-15)
    assert got.flags.c_contiguous and gather(Tensor(own)).array.flags.c_contiguous
    gradcheck_across(t, bend(gather), own, False, False)
    gradcheck_across(t, bend(functools.partial(F.reduce_scatter, t, dim=dim)), other, False, False)


@ranks(1, 2, 3, 4, 5, 8)
def test_all_to_all_cuts_one_dimension_and_joins_another(t):
    n = t.size
    everything = whole_of((2, n, n, 3))  # (batch, tokens, heads, width), a token and a head a rank
    own = everything[:, t.rank : t.rank + 1]
    heads = F.all_to_all(t, Tensor(own), split=2, join=1)
    assert (heads.array == everything[:, :, t.rank : t.rank + 1]).all()
    assert (F.all_to_all(t, heads, split=1, join=2).array == own).all()
    small = own[:1, :, :, :1].copy()
    gradcheck_across(t, bend(lambda x: F.all_to_all(t, x, split=2, join=1)), small, False, False)


@ranks(2, 3, 4)
def test_a_gather_before_results_of_ones_own_has_a_wrong_gradient(t):
    """The negative control: what `all_gather` is for."""
    own = mine(t, (2,))
    with pytest.raises(AssertionError, match="backward says"):
        gradcheck_across(t, lambda x: F.gather(t, x, 0) * (1 + t.rank), own, False, False)


@ranks(2, 3, 4)
def test_all_reduce_before_results_of_ones_own_has_a_wrong_gradient(t):
    with pytest.raises(AssertionError, match="backward says"):
        gradcheck_across(t, lambda x: F.all_reduce(t, x) * (1 + t.rank), mine(t, (2,)), False,
                         False)


@ranks(2, 3, 4)
def test_a_loss_of_a_replicated_tensor_sums_what_the_ranks_make_of_it(t):
    with pytest.raises(AssertionError, match="backward says"):
        gradcheck_across(t, lambda x: x * (1 + t.rank), whole_of((2,)), True, False)


@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_and_messages_are_the_formulas(t):
    """Forward and backward of each, rows of 5 elements of 8 bytes, 7 rows cut unevenly."""
    n, r, K = t.size, t.rank, 8 * 5
    places = [5 * b for b in chunks.bounds(WHOLE, n)]
    ring_all = ring.bytes_sent(5 * WHOLE, 8, n, r)
    gathered = ring_blocks.bytes_sent(places, 8, r, n_scatters=0)
    scattered = ring_blocks.bytes_sent(places, 8, r, n_gathers=0)
    rows = places[r + 1] // 5 - places[r] // 5
    whole, own, square = (WHOLE, 5), (rows, 5), (n, 5)
    cases = [("copy", F.copy, whole, (), 0, ring_all),
             ("all_reduce", F.all_reduce, whole, (), ring_all, 0),
             ("scatter", F.scatter, whole, (0,), 0, gathered),
             ("gather", F.gather, own, (0, WHOLE), gathered, 0),
             ("all_gather", F.all_gather, own, (0, WHOLE), gathered, scattered),
             ("reduce_scatter", F.reduce_scatter, whole, (0,), scattered, gathered),
             ("all_to_all", F.all_to_all, square, (0, 1), (n - 1) * K, (n - 1) * K)]
    messages = dict.fromkeys(["copy", "all_reduce"], 2 * (n - 1))
    for name, fn, shape, args, forward, backward in cases:
        ledger = Ledger(t.subgroup(range(n)))
        y = fn(ledger, Tensor(np.ones(shape), True), *args)
        y.backward(np.ones(y.shape))
        for way, wanted in ("forward", forward), ("backward", backward):
            count = ledger.count(label=f"{name}.{way}")
            assert count.bytes_sent == wanted, (name, way)
            assert count.messages_sent == (messages.get(name, n - 1) if wanted or n == 1 else 0)
        assert ledger.bytes_sent == forward + backward


@ranks(2, 3, 5)
def test_half_precision_is_summed_in_float32_and_travels_in_two_bytes(t):
    x = np.full(2 * t.size, 40000, np.float16)  # the sum of two passes 65504
    x[::2] *= (-1) ** t.rank
    ledger = Ledger(t.subgroup(range(t.size)))
    y = F.all_reduce(ledger, Tensor(x)).array
    assert y.dtype == np.float16 and (y[::2] == (40000 if t.size % 2 else 0)).all()
    assert ledger.bytes_sent == 2 * (t.size - 1) * 4  # as a float16 ring
    small = np.full(4, 1 + t.rank / 1024, np.float16)
    exact = np.float16(sum(1 + r / 1024 for r in range(t.size)))
    assert (F.all_reduce(t, Tensor(small)).array == exact).all()
    block = F.reduce_scatter(t, Tensor(np.full(t.size, 1 + t.rank / 1024, np.float16)), 0)
    assert (block.array == exact).all()


@ranks(2, 3)
def test_inputs_and_gradients_are_left_as_they_are(t):
    for fn, args in [(F.copy, ()), (F.all_reduce, ()), (F.reduce_scatter, (0,)),
                     (F.all_gather, (0,)), (F.scatter, (0,))]:
        x = Tensor(whole_of((2 * t.size, 2)), True) * 1
        kept = x.array.copy()
        y = fn(t, x, *args)
        gy = np.ones(y.shape)
        y.backward(gy)
        assert (x.array == kept).all() and (gy == 1).all(), fn


@ranks(2)
def test_nothing_is_kept_for_backward(t):
    for fn, args in [(F.all_reduce, ()), (F.reduce_scatter, (0,)), (F.all_gather, (0,)),
                     (F.scatter, (0,)), (F.gather, (0,)), (F.all_to_all, (0, 1))]:
        x = Tensor(whole_of((2, 2)), True) * 1
        held = weakref.ref(x.array)
        y = fn(t, x, *args)
        del x
        assert held() is None and y.requires_grad, fn


@ranks(2, 3)
def test_recompute_repeats_the_collectives(t):
    """A block's forward runs again in backward, on all ranks alike: the same gradients."""
    x = whole_of((3, 4))
    w = Tensor(mine(t, (4, 4)), True)

    def block(x, w):
        return F.all_reduce(t, (F.copy(t, x) @ w).tanh())

    found = []
    for run in (block, lambda x, w: recompute(block, x, w)):
        a = Tensor(x.copy(), True)
        w.grad = None
        run(a, w).sum().backward()
        found.append((a.grad, w.grad))
    assert all((p == q).all() for p, q in zip(*found, strict=True))


@pytest.mark.parametrize("call, message", [
    (lambda t, x: F.gather(t, x, 0, length=9), r"an array with 9 elements along dimension 0"),
    (lambda t, x: F.all_gather(t, x, 1, length=3), r"along dimension 1, so \d elements; got 3"),
    (lambda t, x: F.all_to_all(t, x, 0, 1), "size of dimension 0 that is divisible by the 2 ranks"),
])
def test_blocks_that_do_not_fit_are_refused(call, message):
    with pytest.raises(RankFailed, match=message):
        simulate(2, lambda t: call(t, Tensor(np.ones((3, 3)))))


@ranks(3)
def test_another_all_reduce_can_be_used(t):
    own = mine(t, (5,))
    x = Tensor(own, True)
    y = F.all_reduce(t, F.copy(t, x, naive.all_reduce), naive.all_reduce)
    y.backward(np.ones(5))
    assert (y.array == naive.all_reduce(t, own.copy())).all() and (x.grad == 3).all()
