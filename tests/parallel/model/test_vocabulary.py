"""The vocabulary divided: embedding and cross entropy are those of the whole."""

import numpy as np
import pytest

from minidl import memory, nn, random
from minidl.comm import chunks, ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel.model import vocabulary
from minidl.parallel.model.tensor import ColumnLinear, whole
from minidl.parallel.model.vocabulary import VocabEmbedding, cross_entropy
from minidl.tensor import Tensor
from tests.conftest import ranks

V, ROWS = 11, 7


def logits(dtype=np.float64, scale=4):
    rng = np.random.default_rng(1)
    target = rng.integers(0, V, ROWS)
    target[[0, 1]] = 0, V - 1
    return (scale * rng.normal(size=(ROWS, V))).astype(dtype), target


def columns(t, n=V):
    return slice(*chunks.bounds(n, t.size)[t.rank : t.rank + 2])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [(), (2, 4), range(ROWS)])
@ranks(1, 2, 3, 4, 5, 8)
def test_loss_and_gradient_are_those_of_the_whole(t, ignored, reduction):
    x, target = logits()
    target[list(ignored)] = -100
    whole_x, own = Tensor(x.copy(), True), Tensor(x[:, columns(t)].copy(), True)
    wanted = F.cross_entropy(whole_x, target, reduction=reduction)
    loss = cross_entropy(t, own, target, V, reduction=reduction)
    np.testing.assert_allclose(loss.array, wanted.array, rtol=1e-13)
    gy = np.random.default_rng(2).normal(size=loss.shape)
    wanted.backward(gy)
    loss.backward(gy)
    np.testing.assert_allclose(own.grad, whole_x.grad[:, columns(t)], rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
@ranks(2, 3)
def test_large_logits_stay_finite_and_all_ranks_have_the_same_bits(t, offset):
    x, target = logits(np.float32)
    loss = cross_entropy(t, Tensor(x[:, columns(t)] + np.float32(offset)), target, V).array
    assert loss.dtype == np.float32 and np.isfinite(loss)
    # float32 has 1e-3 left of a number at 1e4
    np.testing.assert_allclose(loss, F.cross_entropy(Tensor(x), target).array,
                               atol=1e-6 + 3e-7 * abs(offset), rtol=1e-5)
    low, high = ring.all_reduce(t, loss[None].copy(), np.minimum), loss
    assert ring.all_reduce(t, loss[None].copy(), np.maximum) == low == high


@pytest.mark.parametrize("dtype, tol", [(np.float32, 1e-6), (np.float16, 2e-3)])
@ranks(2, 3)
def test_the_kernels_give_the_gradient_too(t, dtype, tol):
    x, target = logits(dtype, scale=2)
    own, all_of_it = Tensor(x[:, columns(t)].copy(), True), Tensor(x.astype(np.float64), True)
    cross_entropy(t, own, target, V).backward()
    F.cross_entropy(all_of_it, target).backward()
    assert own.grad.dtype == dtype
    np.testing.assert_allclose(own.grad, all_of_it.grad[:, columns(t)], atol=tol, rtol=tol)


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@ranks(1, 2, 3, 4, 5, 8)
def test_smoothed_labels_give_the_loss_and_gradient_of_the_whole(t, smoothing, reduction):
    x, target = logits()
    target[2] = -100
    how = dict(reduction=reduction, label_smoothing=smoothing)
    whole_x, own = Tensor(x.copy(), True), Tensor(x[:, columns(t)].copy(), True)
    wanted = F.cross_entropy(whole_x, target, **how)
    ledger = Ledger(t.subgroup(range(t.size)))
    loss = cross_entropy(ledger, own, target, V, **how)
    assert ledger.bytes_sent == vocabulary.bytes_sent(ROWS, 8, t.size, t.rank, smooths=True)
    np.testing.assert_allclose(loss.array, wanted.array, rtol=1e-13)
    gy = np.random.default_rng(2).normal(size=loss.shape)
    wanted.backward(gy)
    loss.backward(gy)
    np.testing.assert_allclose(own.grad, whole_x.grad[:, columns(t)], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@ranks(2, 3, 4)
def test_a_rank_whose_words_are_all_masked_adds_nothing(t, dtype):
    """Every rank in turn has only logits of -inf in one row; the target is another's word."""
    x, target = logits(dtype)
    for rank in range(t.size):
        at = slice(*chunks.bounds(V, t.size)[rank : rank + 2])
        x[rank, at] = -np.inf
        target[rank] = (at.stop) % V
    whole_x, own = Tensor(x.copy(), True), Tensor(x[:, columns(t)].copy(), True)
    wanted = F.cross_entropy(whole_x, target)
    loss = cross_entropy(t, own, target, V)
    assert np.isfinite(wanted.array)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5  # sums in another order
    np.testing.assert_allclose(loss.array, wanted.array, rtol=tolerance)
    wanted.backward()
    loss.backward()
    np.testing.assert_allclose(own.grad, whole_x.grad[:, columns(t)], rtol=tolerance,
                               atol=tolerance)


def test_masked_words_give_pytorchs_loss():
    torch = pytest.importorskip("torch", reason="the oracle")
    x, y = np.array([[1.0, 2.0, -np.inf, -np.inf]]), np.array([1])
    wanted = torch.nn.functional.cross_entropy(torch.tensor(x), torch.tensor(y)).item()

    def loss(t):
        own = Tensor(np.ascontiguousarray(x[:, 2 * t.rank : 2 * t.rank + 2]))
        return cross_entropy(t, own, y, 4).item()

    np.testing.assert_allclose(simulate(2, loss), wanted, rtol=1e-14)


@ranks(1, 2, 3, 4, 5, 8)
def test_three_numbers_a_row_are_sent_and_nothing_backward(t):
    x, target = logits()
    ledger = Ledger(t.subgroup(range(t.size)))
    loss = cross_entropy(ledger, Tensor(x[:, columns(t)].copy(), True), target, V)
    assert ledger.bytes_sent == vocabulary.bytes_sent(ROWS, 8, t.size, t.rank)
    assert ledger.messages_sent == 2 * 2 * (t.size - 1)
    loss.backward()
    assert ledger.bytes_sent == ledger.count(label="cross_entropy.forward").bytes_sent


def test_no_rank_holds_the_whole_logits():
    """By the memory ledger, the largest buffer of a step: a quarter of the logits on 4 ranks; and
    with gathered logits, the negative control, all of them."""
    n_rows, n_words = 64, 256
    g = random.Generator(0)
    x = g.normal(n_rows, 8)
    target = g.integers(0, n_words, n_rows)

    def body(t, gather):
        head = ColumnLinear(8, n_words, False, t=t, gather=gather)
        with memory.record(head) as ledger:
            largest = []
            real = ledger._add
            ledger._add = lambda array, *a: largest.append(array.nbytes) or real(array, *a)
            y = head(Tensor(x))
            loss = F.cross_entropy(y, target) if gather else cross_entropy(t, y, target, n_words)
            loss.backward()
        return max(largest)

    assert set(simulate(4, lambda t: body(t, False))) == {4 * n_rows * n_words // 4}
    assert set(simulate(4, lambda t: body(t, True))) == {4 * n_rows * n_words}


@pytest.mark.parametrize("padding", [None, 0, 6, -1])
@ranks(1, 2, 3, 4, 5, 8)
def test_an_embedding_of_rows_that_other_ranks_have(t, padding):
    rng = np.random.default_rng(3)
    ids, gy = rng.integers(0, V, (2, 9)), rng.normal(size=(2, 9, 4))
    alone = nn.Embedding(V, 4, padding, generator=random.Generator(1)).double()
    own = VocabEmbedding.of(nn.Embedding(V, 4, padding, generator=random.Generator(1)).double(), t)
    ledger = Ledger(t.subgroup(range(t.size)))
    own.t = ledger
    wanted, y = alone(ids), own(ids)
    assert (y.array == wanted.array).all()  # one rank's row and zeros: the sum is exact
    wanted.backward(gy)
    y.backward(gy)
    np.testing.assert_allclose(whole(own.weight, own.weight.grad), alone.weight.grad, rtol=1e-13)
    assert ledger.bytes_sent == ring.bytes_sent(2 * 9 * 4, 8, t.size, t.rank)  # forward alone


@ranks(2, 3, 4)
def test_an_embedding_of_tokens_goes_on_with_its_block(t):
    ids = np.random.default_rng(3).integers(0, V, (2, 12))
    alone = nn.Embedding(V, 4, generator=random.Generator(1))
    own = VocabEmbedding(V, 4, generator=random.Generator(1), t=t, seq=1)
    block = slice(12 // t.size * t.rank, 12 // t.size * (t.rank + 1))
    assert (own(ids).array == alone(ids).array[:, block]).all()


@pytest.mark.parametrize("call, error", [
    (lambda t: cross_entropy(t, Tensor(np.ones((4, 11))), np.zeros(4, int), 11),
     r"\(rows, [56]\), with this rank's [56] of 11"),
    (lambda t: cross_entropy(t, Tensor(np.ones((2, 5))), np.zeros(3, int), 10),
     "target of shape .rows,."),
    (lambda t: cross_entropy(t, Tensor(np.ones((2, 5))), np.array([3, 10]), 10),
     "from 0 to 9, .*; got 10"),
    (lambda t: cross_entropy(t, Tensor(np.ones((2, 5))), np.array([3, -1]), 10),
     "from 0 to 9, .*; got -1"),
    (lambda t: cross_entropy(t, Tensor(np.ones((1, 5))), np.array([3]), 10, reduction="x"), "mean"),
    (lambda t: VocabEmbedding(5, 2, t=t)(np.array([1, 5])), "5 rows.; got ids from 1 to 5"),
    (lambda t: VocabEmbedding(5, 2, t=t)(np.array([-1])), "got ids from -1"),
])
def test_what_no_rank_has_is_refused(call, error):
    with pytest.raises(RankFailed, match=error):
        simulate(2, call)
