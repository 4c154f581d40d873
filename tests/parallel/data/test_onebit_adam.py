"""1-bit Adam: Adam in the warm-up, afterwards momentum whose every bit is accounted for."""

import numpy as np
import pytest

from minidl import optim
from minidl.comm import codec, simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel import Compressed, DataParallel, OneBitAdam
from minidl.plain import naive
from tests.conftest import ranks
from tests.parallel.data.test_data_parallel import assert_equal_on_all_ranks, data, network, share

SIZES = (1, 2, 3, 4, 5, 8)


def train(t, wrap, make, n_steps):
    net = network()
    model, opt = wrap(net), make(net.parameters())
    for step in range(n_steps):
        x, y = data(13, seed=step)
        mine = share(t, 13)
        opt.zero_grad()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        opt.step()
    model.close()
    return model, [p.array for p in net.parameters()]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@ranks(*SIZES)
def test_the_warm_up_is_adamw(t, decay):
    _, want = train(t, lambda net: DataParallel(net, t),
                    lambda ps: optim.AdamW(ps, lr=0.01, weight_decay=decay), 6)
    _, got = train(t, lambda net: Compressed(net, t, OneBitAdam(warm_up_steps=6)),
                   lambda ps: optim.SGD(ps, lr=0.01, weight_decay=decay), 6)
    for a, b in zip(want, got):
        # lr (step + decay w) is two roundings where AdamW has two others; float64
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["ONE_BIT", "ONE_BIT_MEAN", "INT8"])
@ranks(*SIZES)
def test_the_momentum_that_arrived_and_what_is_owed_is_the_momentum_that_was_wanted(t, name):
    net = network()
    params = list(net.parameters())
    model = Compressed(net, t, OneBitAdam(2, betas=(0.5, 0.9), codec=getattr(codec, name)))
    dense = DataParallel(network(), t)
    bucket, = model.reducer.buckets
    wanted, arrived = np.zeros_like(bucket.flat), np.zeros_like(bucket.flat)
    frozen = None
    for step in range(6):
        x, y = data(4 * t.size, seed=step)
        mine = slice(4 * t.rank, 4 * t.rank + 4)
        for p in [*params, *dense.parameters()]:
            p.grad = None
        before = bucket.moments[0].copy()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        F.cross_entropy(dense(x[mine]), y[mine]).backward()
        mean = np.concatenate([p.grad.reshape(-1) for p in reversed(list(dense.parameters()))])
        if step >= 2:
            wanted += 0.5 * before + 0.5 * mean
            arrived += bucket.moments[0]
            assert (bucket.moments[1] == frozen).all()
        frozen = bucket.moments[1].copy()
        assert_equal_on_all_ranks(t, [p.grad.array for p in params])
    model.close()
    dense.close()
    owed = naive.all_reduce(t, bucket.own["residual"].copy())
    np.testing.assert_allclose(arrived + owed, wanted, rtol=0, atol=1e-13)
    assert t.size == 1 or np.abs(owed).max() > 1e-5


@ranks(2, 3)
def test_a_weight_that_no_gradient_has_reached_is_left_alone(t):
    """Its v is 0, and the sign that the code gives it, over eps, would be an enormous step."""
    net = network()
    model = Compressed(net, t, OneBitAdam(warm_up_steps=1))
    x, y = data(8)
    x[:, 2] = 0
    for _ in range(2):
        net[0].weight.grad = None
        for p in net.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()
    model.close()
    assert (net[0].weight.grad[:, 2] == 0).all() and net[0].weight.grad.array.any()
    assert np.abs(net[0].weight.grad.array).max() < 1e3


def test_adam_on_top_is_refused():
    def body(t):
        net = network()
        model, opt = Compressed(net, t, OneBitAdam()), optim.Adam(net.parameters())
        x, y = data(8)
        F.cross_entropy(model(x), y).backward()
        opt.step()

    with pytest.raises(RankFailed, match="1-bit Adam already applies momentum, so the"):
        simulate(2, body)
    with pytest.raises(ValueError, match="OneBitAdam wants warm_up_steps of at least 1"):
        OneBitAdam(warm_up_steps=0)


@ranks(4, mpi=False)
def test_it_trains_like_adam(t):
    def loss(wrap, make):
        net = network()
        model, opt = wrap(net), make(net.parameters())
        x, y = data(24, seed=3)
        for _ in range(150):
            opt.zero_grad()
            F.cross_entropy(model(x[t.rank::4]), y[t.rank::4]).backward()
            opt.step()
        model.close()
        return float(F.cross_entropy(net(x), y).array)

    adam = loss(lambda net: DataParallel(net, t), lambda ps: optim.Adam(ps, lr=0.02))
    one_bit = loss(lambda net: Compressed(net, t, OneBitAdam(warm_up_steps=40)),
                   lambda ps: optim.SGD(ps, lr=0.02))
    assert adam < 0.1 and one_bit < 2 * adam + 0.1
