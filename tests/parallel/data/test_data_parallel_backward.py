"""Which backward sends what: unused parameters, accumulation, other orders, what is refused."""

import contextlib

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import simulate
from minidl.comm.observe.ledger import Ledger
from minidl.nn import functional as F
from minidl.parallel import DataParallel, average_gradients
from tests.conftest import ranks
from tests.parallel.data.test_data_parallel import CLOSE, assert_equal_on_all_ranks, data, network


class Branches(nn.Module):
    """Rank-dependent control flow: `left`, `right`, or neither is used; `never` is not used."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.left, self.right, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, branch):
        return getattr(self, branch)(self.trunk(x))


@pytest.mark.parametrize("overlap", [True, False])
@ranks(1, 2, 3, 4)
def test_parameters_unused_here_count_as_zeros_and_unused_everywhere_stay_untouched(t, overlap):
    minidl.manual_seed(1)
    net = Branches().double()
    model = DataParallel(net, t, bucket_bytes=1, first_bucket_bytes=1, overlap=overlap)
    branch = "left" if t.rank == 0 else "right"
    x = np.random.default_rng(t.rank).standard_normal((2, 3))
    kept = np.full(net.never.bias.shape, 5.0)
    net.never.bias.grad = kept
    for _ in range(2):
        for p in (net.trunk.weight, net.left.weight, net.right.weight):
            p.grad = None
        model(x, branch).sum().backward()
    assert net.never.weight.grad is None and net.never.bias.grad.array is kept
    # the sum over a linear layer's outputs: d/d left.weight is the trunk's output, summed
    h = np.random.default_rng(0).standard_normal((2, 3)) @ net.trunk.weight.array.T
    h += net.trunk.bias.array
    np.testing.assert_allclose(net.left.weight.grad, np.stack([h.sum(0)] * 2) / t.size, **CLOSE)
    if t.size == 1:
        assert net.right.weight.grad is None
    else:
        assert (net.right.weight.grad != 0).all()
        assert_equal_on_all_ranks(t, [net.right.weight.grad])


@ranks(1, 2, 3)
def test_no_sync_accumulates_and_the_next_backward_averages_the_sum(t):
    net = network()
    model = DataParallel(net, t)
    # rank r: parts of 4 + r, 4 and 4 samples, so the last one's weights would be other ones
    cuts = np.cumsum([0] + [n for rank in range(t.size) for n in (4 + rank, 4, 4)])
    x, y = data(cuts[-1])
    mine = [slice(*cuts[3 * t.rank + i:][:2]) for i in range(3)]
    for i, part in enumerate(mine):
        with model.no_sync() if i < 2 else contextlib.nullcontext():
            share = (part.stop - part.start) / (12 + t.rank)
            (F.cross_entropy(model(x[part]), y[part]) * share).backward()
    whole = network()
    F.cross_entropy(whole(x), y).backward()
    for p, q in zip(net.parameters(), whole.parameters()):
        np.testing.assert_allclose(p.grad, q.grad, **CLOSE)


@ranks(2)
def test_gradients_add_up_over_synchronised_backwards_like_without_ranks(t):
    net, whole = network(), network()
    model = DataParallel(net, t)
    for step in range(2):
        x, y = data(8, seed=step)
        part = slice(4 * t.rank, 4 * t.rank + 4)
        F.cross_entropy(model(x[part]), y[part]).backward()
        F.cross_entropy(whole(x), y).backward()
    for p, q in zip(net.parameters(), whole.parameters()):
        np.testing.assert_allclose(p.grad, q.grad, **CLOSE)


@ranks(2, 3)
def test_each_backward_is_weighted_by_its_own_samples(t):
    net, whole = network(), network()
    model = DataParallel(net, t)
    for first in (1, 2 * t.size):
        sizes = [abs(first - rank) + 1 for rank in range(t.size)]  # 2 1 2, then 7 6 5
        cuts = np.cumsum([0, *sizes])
        x, y = data(cuts[-1])
        part = slice(*cuts[t.rank:][:2])
        for m in (net, whole):
            m.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        F.cross_entropy(whole(x), y).backward()
        for p, q in zip(net.parameters(), whole.parameters()):
            np.testing.assert_allclose(p.grad, q.grad, **CLOSE)


@ranks(2, 3, 4)
def test_a_rank_without_samples_counts_as_zeros_though_its_mean_is_nan(t):
    p = minidl.tensor(np.zeros(3), requires_grad=True)
    p.grad = np.full(3, np.nan if t.rank == 1 else 6.0 + t.rank)
    average_gradients(t, [p], n_samples=0 if t.rank == 1 else 5)
    others = [6.0 + rank for rank in range(t.size) if rank != 1]
    np.testing.assert_allclose(p.grad, np.mean(others), rtol=1e-15)  # a weight, sums, a division


class InTurn(nn.Module):
    """Two layers of one size, in an order that the caller names; the second may be left out."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x, order):
        for name in order:
            x = F.tanh(getattr(self, name)(x))
        return x


@pytest.mark.parametrize("first, other", [("ab", "ba"), ("ba", "ab"), ("ab", "a"), ("a", "ba")])
@pytest.mark.parametrize("overlap", [True, False])
@ranks(2, 3)
def test_ranks_may_come_to_their_layers_in_another_order_or_to_fewer(t, overlap, first, other):
    # Buckets of one layer each: cut or sent in a rank's own order, a's gradient would meet b's.
    net, alone = InTurn().double(), InTurn().double()
    model = DataParallel(net, t, bucket_bytes=1, first_bucket_bytes=1, overlap=overlap)
    alone.load_state_dict(net.state_dict())
    for step in range(3):
        x = np.random.default_rng([t.rank, step]).standard_normal((2, 4))
        for m in (model, alone):
            m.zero_grad()
            m(x, first if t.rank == 0 else other).sum().backward()
        average_gradients(t, alone.parameters(), n_samples=2)
        for p, q in zip(net.parameters(), alone.parameters()):
            np.testing.assert_allclose(p.grad, q.grad, **CLOSE)
    model.close()


@pytest.mark.parametrize("kept", ["the means themselves", "arrays made of them"])
@pytest.mark.parametrize("overlap", [True, False])
@ranks(2, 3)
def test_an_earlier_gradient_of_what_this_rank_leaves_out_counts_as_it_is_now(t, overlap, kept):
    # Both layers are in one bucket. In turn one rank leaves b out, whose gradient of the step
    # before was kept, or halved by hand: then the bucket's own memory holds another value.
    net, alone = InTurn().double(), InTurn().double()
    model = DataParallel(net, t, overlap=overlap)
    alone.load_state_dict(net.state_dict())
    for step in range(5):
        x = np.random.default_rng([t.rank, step]).standard_normal((2, 4))
        order = "a" if step and step % t.size == t.rank else "ab"
        for m, layers in ((model, net), (alone, alone)):
            layers.a.weight.grad = None
            if step and kept == "arrays made of them":
                layers.b.weight.grad = layers.b.weight.grad * 0.5
            m(x, order).sum().backward()
        average_gradients(t, alone.parameters(), n_samples=2)
        for p, q in zip(net.parameters(), alone.parameters()):
            np.testing.assert_allclose(p.grad, q.grad, **CLOSE)


def failure(body, n_ranks=1):
    with pytest.raises(RuntimeError) as caught:
        simulate(n_ranks, body)
    return str(caught.value)


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine, self.coarse = nn.Linear(3, 2).double(), nn.Linear(3, 2)

    def forward(self, x):
        return self.fine(x), self.coarse(x.astype(np.float32))


@ranks(2, 3)
def test_each_dtype_is_averaged_in_its_own_precision(t):
    net, alone = TwoDtypes(), TwoDtypes()
    model = DataParallel(net, t)
    alone.load_state_dict(net.state_dict())
    x = np.random.default_rng(t.rank).standard_normal((2, 3))
    for m in (model, alone):
        for out in m(x):
            out.sum().backward()
    average_gradients(t, alone.parameters(), n_samples=2)
    for p, q in zip(net.parameters(), alone.parameters()):
        assert p.grad.dtype == p.dtype
        # each bucket is cut into chunks at its own places: a rounding of another order
        bound = 4 * np.finfo(p.dtype).eps
        np.testing.assert_allclose(p.grad, q.grad, rtol=bound, atol=bound)
    model.close()


@ranks(1, 2)
def test_what_is_no_backward_sends_and_counts_nothing(t):
    ledger = Ledger(t)
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = DataParallel(net, ledger)
    x = np.random.default_rng(t.rank).standard_normal((4, 3)).astype("f4")
    ledger.reset()
    for training in (False, True):
        model.train(training)
        with minidl.no_grad():
            model(x)
    assert ledger.rows == {}
    model(x).sum().backward()
    assert model.reducer.n_samples == 4
    model.close()
    ledger.reset()
    net(x).sum().backward()  # an ordinary model again
    assert ledger.rows == {}


@ranks(2, 3)
def test_an_error_under_no_sync_does_not_leave_it_on(t):
    net = network()
    model = DataParallel(net, t)
    with pytest.raises(ZeroDivisionError), model.no_sync():
        raise ZeroDivisionError
    x, y = data(4, seed=t.rank)
    F.cross_entropy(model(x), y).backward()
    assert_equal_on_all_ranks(t, [p.grad.array for p in net.parameters()])


def test_two_forwards_for_one_backward_are_refused():
    def body(t):
        model = DataParallel(Branches(), t)
        x = np.ones((1, 3), np.float32)
        (model(x, "left") + model(x, "right")).sum().backward()

    assert "A backward that sends gradients wants exactly one forward" in failure(body)


def test_forwards_of_unequal_samples_before_one_backward_are_refused():
    """On rank 1 the second batch is shorter: the mean of the first would get its weight."""
    def body(t):
        model = DataParallel(nn.Linear(2, 1), t)
        first = model(np.ones((4, 2), np.float32)).mean()
        second = model(np.ones((4 - t.rank, 2), np.float32)).mean()
        (first + second).backward()

    assert "got a forward of 3 samples after a forward of 4 samples whose" in failure(body, 2)


@ranks(2, 3)
def test_forwards_of_equal_samples_before_one_backward_give_the_sum_of_the_means(t):
    minidl.manual_seed(0)
    net = nn.Linear(2, 1)
    model = DataParallel(net, t)
    n = 2 + t.rank
    losses = [model(np.full((n, 2), scale * (t.rank + 1), np.float32)).mean() for scale in (1, 2)]
    (losses[0] + losses[1]).backward()
    samples = [2 + r for r in range(t.size)]
    means = sum(n * 3 * (r + 1) for r, n in enumerate(samples)) / sum(samples)
    np.testing.assert_allclose(net.weight.grad, np.full((1, 2), means), rtol=1e-6)
    model.close()


def test_a_second_backward_of_one_forward_is_refused():
    def body(t):
        loss = DataParallel(nn.Linear(2, 1), t)(np.ones((1, 2), np.float32)).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert "The latest forward did not use" in failure(body)


def test_a_forward_that_uses_no_parameter_says_so_instead_of_hanging():
    class Nothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(2, 2)

        def forward(self, x):
            return x

    message = failure(lambda t: DataParallel(Nothing(), t)(minidl.ones(2, 2)))
    assert "used none of the model's 2 parameters" in message
