"""Compressed gradients: nothing is lost, the bits are the same on all ranks, bytes by formula."""

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.comm import codec, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.nn import functional as F
from minidl.parallel import (
    DGC, Compressed, DataParallel, ErrorFeedback, OneBitAdam, PowerSGD, Zero1, Zero2, Zero3,
    average_gradients,
)
from minidl.parallel.data import header
from minidl.plain import naive
from minidl.precision import amp
from tests.conftest import ranks
from tests.parallel.data.test_data_parallel import assert_equal_on_all_ranks, data, network, share

SIZES = (1, 2, 3, 4, 5, 8)
# What returns a mean that is owed in part. Fresh ones for each model: they have no state.
MEANS = {
    "fp16": lambda: ErrorFeedback(codec.FP16),
    "int8": lambda: ErrorFeedback(codec.INT8),
    "powersgd": lambda: PowerSGD(rank=2, min_compression_rate=0.5),
    "one bit": lambda: ErrorFeedback(codec.ONE_BIT_MEAN),
}
# What conserves the sum of means; DGC with momentum: test_dgc.py.
CONSERVING = MEANS | {"dgc": lambda: DGC(momentum=0, sparsity=0.9, min_size=1)}
METHODS = CONSERVING | {
    "1-bit adam": lambda: OneBitAdam(warm_up_steps=2),
    "powersgd, dense": lambda: PowerSGD(start_step=2, min_compression_rate=1),
    "dgc, momentum": lambda: DGC(momentum=0.9, sparsity=0.96, stage_steps=1, min_size=20),
}


def gradients(t, model, params, step, n=13):
    """This rank's backward on its share of n samples of a step; gradients are then model's."""
    x, y = data(n, seed=step)
    mine = share(t, n)
    for p in params:
        p.grad = None
    F.cross_entropy(model(x[mine]), y[mine]).backward()


def dense_means(t, net, params, step, n=13):
    """The mean gradients, uncompressed."""
    x, y = data(n, seed=step)
    mine = share(t, n)
    for p in params:
        p.grad = None
    if len(x[mine]):
        F.cross_entropy(net(x[mine]), y[mine]).backward()
    average_gradients(t, params, len(x[mine]))
    return [p.grad.array for p in params]


def tolerance(model):
    return 1e-6 if isinstance(model.method, DGC) else 1e-13


def total_owed(t, model, kind="residual"):
    """{parameter: the sum over ranks of what is kept of it}."""
    return {p: naive.all_reduce(t, view.copy()) for b in model.reducer.buckets
            for p, view in zip(b.params, b.views_of(kind))}


@pytest.mark.parametrize("bucket_bytes", [200, 1 << 20])
@ranks(*SIZES)
def test_what_was_sent_and_what_is_owed_make_up_the_sum_of_means(t, bucket_bytes):
    for method in CONSERVING.values():
        net = network()
        params = list(net.parameters())
        model = Compressed(net, t, method(), bucket_bytes=bucket_bytes, first_bucket_bytes=200)
        sent, wanted = ([np.zeros(p.shape) for p in params] for _ in range(2))
        for step in range(4):  # shares are uneven for every size above 1, the last of 8 has none
            gradients(t, model, params, step)
            assert_equal_on_all_ranks(t, [p.grad.array for p in params])
            for total, p in zip(sent, params):
                total += p.grad.array
        model.close()
        for step in range(4):
            for total, mean in zip(wanted, dense_means(t, net, params, step)):
                total += mean
        owed = total_owed(t, model)
        for p, s, w in zip(params, sent, wanted):
            # sums of values below 1: some hundred roundings of 2^-53; of pairs, which are added in
            # float32, some of 2^-24
            np.testing.assert_allclose(s + owed[p], w, rtol=0, atol=tolerance(model))
        assert t.size == 1 or max(np.abs(o).max() for o in owed.values()) > 1e-6


@pytest.mark.parametrize("name", METHODS)
@ranks(*SIZES)
def test_bytes_equal_the_formula(t, name):
    net = network()
    ledger = Ledger(t)
    model = Compressed(net, ledger, METHODS[name](), bucket_bytes=300, first_bucket_bytes=100)
    for step in range(4):
        before, expected = ledger.bytes_sent, model.bytes_sent()
        gradients(t, model, list(net.parameters()), step, n=3 * t.size)
        assert ledger.bytes_sent - before == expected
    model.close()


@pytest.mark.parametrize("name", METHODS)
@ranks(2, 3)
def test_accumulated_without_sync_equals_one_batch(t, name):
    results = []
    for parts in (1, 2):
        net = network()
        model = Compressed(net, t, METHODS[name]())
        x, y = data(8 * t.size)
        x, y = x[8 * t.rank:8 * t.rank + 8], y[8 * t.rank:8 * t.rank + 8]
        if parts == 2:
            with model.no_sync():
                (F.cross_entropy(model(x[:4]), y[:4]) / 2).backward()
            (F.cross_entropy(model(x[4:]), y[4:]) / 2).backward()
        else:
            F.cross_entropy(model(x), y).backward()
        results.append([p.grad.array for p in net.parameters()])
        model.close()
    for a, b in zip(*results):  # a rounding that falls the other way would be a whole step
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
@ranks(3)
def test_a_rank_without_a_batch_still_sends_what_it_owes(t, name):
    net = network()
    params = list(net.parameters())
    model = Compressed(net, t, METHODS[name]())
    gradients(t, model, params, 0)
    before = {kind: total_owed(t, model, kind) for kind in model.method.kinds}
    own = [b.own["residual"].copy() for b in model.reducer.buckets]
    x, y = data(8, seed=1)
    for p in params:
        p.grad = None
    if t.rank == 2:
        model.absent()
    else:
        F.cross_entropy(model(x[t.rank::2]), y[t.rank::2]).backward()
    model.close()
    assert_equal_on_all_ranks(t, [p.grad.array for p in params])
    moved = [(b.own["residual"] != o).any() for b, o in zip(model.reducer.buckets, own)]
    assert t.rank < 2 or name in ("powersgd, dense", "1-bit adam") or any(moved)
    if name in CONSERVING:
        sent, after = [p.grad.array for p in params], total_owed(t, model)
        for p in params:
            p.grad = None
        if t.rank < 2:
            F.cross_entropy(net(x[t.rank::2]), y[t.rank::2]).backward()
        average_gradients(t, params, 4 * (t.rank < 2))
        for p, g in zip(params, sent):
            np.testing.assert_allclose(g + after[p], p.grad + before["residual"][p], rtol=0,
                                       atol=tolerance(model))


@pytest.mark.parametrize("name", METHODS)
@ranks(2, mpi=False)
def test_a_second_backward_on_averaged_gradients_is_refused(t, name):
    model = Compressed(network(), t, METHODS[name]())
    x, y = data(8)
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match="still has the gradient that was averaged before"):
        model(x)
    for p in model.parameters():
        p.grad[...] = 0  # zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    model.close()


@ranks(2, mpi=False)
def test_a_gradient_that_is_no_number_is_refused(t):
    model = Compressed(network(), t, ErrorFeedback(), overlap=False)
    x, _ = data(8)
    with pytest.raises(FloatingPointError, match=f"rank {t.rank}: wanted finite gradients"), \
            np.errstate(all="ignore"):
        (model(x) * np.inf).sum().backward()


def test_loss_scaling_is_refused():
    def body(t):
        net = network()
        model, opt = Compressed(net, t, ErrorFeedback()), optim.SGD(net.parameters(), lr=0.1)
        scaler = amp.GradScaler()
        x, y = data(8)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        with pytest.raises(TypeError, match="wanted gradients without a loss scale"):
            scaler.step(opt)
        assert amp.GradScaler(enabled=False).step(opt)
        model.close()  # afterwards the parameters are anybody's
        scaler.step(opt)

    simulate(2, body)


def int8(model, t):
    return Compressed(model, t, ErrorFeedback())


WRAPPERS = [DataParallel, Zero1, Zero2, Zero3, int8]


@pytest.mark.parametrize("outer", WRAPPERS)
def test_one_wrapper_only(outer):
    def body(t):
        for inner in WRAPPERS:
            wrapped = inner(network(), t)
            with pytest.raises(TypeError, match="wanted a model to wrap in .*; got a model that is "
                                                f"already wrapped in {type(wrapped).__name__}, so"):
                outer(wrapped, t)
            wrapped.close()

    simulate(2, body)


def train(t, wrap, lr=0.2, n_steps=60, momentum=0.9):
    """The losses of the whole batch in a short training, the same on all ranks."""
    net = network()
    model = wrap(net)
    opt = optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    x, y = data(24, seed=3)
    for _ in range(n_steps):
        opt.zero_grad()
        F.cross_entropy(model(x[t.rank::t.size]), y[t.rank::t.size]).backward()
        opt.step()
    model.close()
    with minidl.no_grad():
        return float(F.cross_entropy(net(x), y).array)


@pytest.mark.parametrize("name", MEANS)
@ranks(4, mpi=False)
def test_training_reaches_the_loss_of_dense_training(t, name):
    dense = train(t, lambda net: DataParallel(net, t))
    assert dense < 0.1 < train(t, lambda net: DataParallel(net, t), n_steps=0)
    more = 0.3 if name == "one bit" else 0.02  # a few dozen steps are not many for one bit
    assert train(t, lambda net: Compressed(net, t, MEANS[name]())) < dense + more


@ranks(2, 4)
def test_the_header_travels_as_it_is(t):
    """The number of samples is not rounded by the codec."""
    model = Compressed(network(), t, ErrorFeedback())
    payload = sum(b.bytes_sent(t, 1) for b in model.reducer.buckets)
    assert model.bytes_sent() - payload == header.bytes_sent(4, t.size, t.rank)
    model.close()
