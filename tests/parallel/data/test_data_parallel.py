"""N ranks on shares of a batch equal one rank on the whole batch, however the shares fall."""

import numpy as np
import pytest

import minidl
from minidl import backend, nn, optim
from minidl.comm import double_tree, halving_doubling, ring, ring_blocks, simulate, tree
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel import DataParallel, average_gradients
from minidl.plain import naive
from tests.conftest import ranks

SIZES = (1, 2, 3, 4, 5, 8)
N_STEPS = 3
# float64 and a few hundred terms, summed in another order: relative differences of some 1e-15
CLOSE = dict(rtol=1e-11, atol=1e-13)


def data(n, seed=0):
    g = minidl.Generator(seed)
    return g.normal(n, 6, dtype=np.float64), g.integers(0, 3, n)


def network():
    minidl.manual_seed(7)
    return nn.MLP(6, 9, 3).double()


def train_alone(n_steps=N_STEPS, n=13):
    """One rank on the whole batch."""
    net = network()
    opt = optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for step in range(n_steps):
        x, y = data(n, seed=step)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return [p.array.copy() for p in net.parameters()]


def share(t, n):
    """This rank's part of n samples: the bounds differ by one, the last ranks may have none."""
    size = -(-n // t.size)
    return slice(t.rank * size, min((t.rank + 1) * size, n))


def assert_equal_on_all_ranks(t, arrays):
    """Bit for bit: the largest and the smallest value over ranks are the same."""
    for a in arrays:
        a = backend.array_of(a)
        bits = a.view(np.int64) if a.dtype == np.float64 else a.view(np.int32)
        low, high = bits.copy(), bits.copy()
        naive.all_reduce(t, low, np.minimum)
        naive.all_reduce(t, high, np.maximum)
        np.testing.assert_array_equal(low, high)


@ranks(*SIZES)
def test_naive_average_after_backward_equals_one_rank_on_the_whole_batch(t):
    net = network()
    opt = optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    for step in range(N_STEPS):
        x, y = data(13, seed=step)
        mine = share(t, 13)
        opt.zero_grad()
        if len(x[mine]):
            F.cross_entropy(net(x[mine]), y[mine]).backward()
        average_gradients(t, net.parameters(), len(x[mine]))
        opt.step()
    for p, want in zip(net.parameters(), train_alone()):
        np.testing.assert_allclose(p.array, want, **CLOSE)
    assert_equal_on_all_ranks(t, [p.array for p in net.parameters()])


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 200, 1 << 20])
@ranks(*SIZES)
def test_buckets_during_backward_equal_one_rank_on_the_whole_batch(t, overlap, bucket_bytes):
    net = network()
    model = DataParallel(net, t, bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes,
                         overlap=overlap)
    opt = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(N_STEPS):
        x, y = data(13, seed=step)
        mine = share(t, 13)  # uneven for every size above 1; empty on the last of 8
        opt.zero_grad()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        opt.step()
    for p, want in zip(net.parameters(), train_alone()):
        np.testing.assert_allclose(p.array, want, **CLOSE)
    assert_equal_on_all_ranks(t, [p.array for p in net.parameters()])
    model.close()


@pytest.mark.parametrize("module", [naive, ring, ring_blocks, tree, halving_doubling, double_tree])
@ranks(2, 3)
def test_any_all_reduce_will_do(t, module):
    net = network()
    model = DataParallel(net, t, all_reduce=module.all_reduce)
    x, y = data(13, seed=0)
    mine = share(t, 13)
    F.cross_entropy(model(x[mine]), y[mine]).backward()
    whole = network()
    F.cross_entropy(whole(x), y).backward()
    for p, want in zip(net.parameters(), whole.parameters()):
        np.testing.assert_allclose(p.grad, want.grad, **CLOSE)
    assert_equal_on_all_ranks(t, [p.grad.array for p in net.parameters()])
    model.close()


@ranks(2, 3, mpi=False)
def test_an_all_reduce_that_is_not_in_place_is_refused(t):
    model = DataParallel(network(), t, all_reduce=lambda t, x: ring.all_reduce(t, x.copy()))
    with pytest.raises(ValueError, match=f"rank {t.rank}: wanted an all_reduce that writes"):
        model(data(4)[0]).sum().backward()


@ranks(2, mpi=False)
def test_inputs_by_name_alone_need_the_number_of_samples(t):
    model, x = DataParallel(nn.Linear(6, 3).double(), t), data(4)[0]
    with pytest.raises(TypeError, match="Pass n_samples="):
        model(x=x)
    model(x=x, n_samples=4).sum().backward()
    model.close()


@ranks(2, 3)
def test_one_bucket_gives_the_bits_of_the_naive_average(t):
    gradients = []
    for afterwards in (True, False):
        net = network()
        x, y = data(4 * t.size)
        mine = slice(4 * t.rank, 4 * t.rank + 4)
        model = net if afterwards else DataParallel(net, t)
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        if afterwards:
            average_gradients(t, list(reversed(list(net.parameters()))), 4)
        gradients.append([p.grad.array for p in net.parameters()])
    for a, b in zip(*gradients):
        np.testing.assert_array_equal(a, b)


@ranks(2, 4)
def test_a_plain_mean_of_uneven_shares_would_be_wrong(t):
    """The negative control of the weights: without them the gradient is measurably another."""
    net = network()
    x, y = data(13)
    mine = share(t, 13)
    F.cross_entropy(net(x[mine]), y[mine]).backward()
    average_gradients(t, net.parameters(), n_samples=1)
    whole = network()
    F.cross_entropy(whole(x), y).backward()
    wrong = max(abs(p.grad - q.grad).max() for p, q in zip(net.parameters(), whole.parameters()))
    assert wrong > 1e-4


@ranks(1, 2, 3, 5)
def test_all_ranks_start_from_rank_0s_parameters_and_buffers(t):
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    for x in [*net.parameters(), *net.buffers()]:
        x.array[...] = t.rank + 1
    DataParallel(net, t)
    for x in [*net.parameters(), *net.buffers()]:
        assert (x.array == 1).all()


@ranks(1, 2, 3)
def test_running_statistics_are_rank_0s(t):
    model = DataParallel(nn.BatchNorm1d(2), t)
    rank_0s = own = np.zeros(2)
    for step in range(3):
        x, of_rank_0 = (np.random.default_rng([rank, step]).standard_normal((4, 2)).astype("f4")
                        for rank in (t.rank, 0))
        model(x).sum().backward()
        own = 0.9 * rank_0s + 0.1 * x.mean(0)  # each forward starts from rank 0's
        rank_0s = 0.9 * rank_0s + 0.1 * of_rank_0.mean(0)
    # float32 roundings of values below 1, some ten of 2^-24
    np.testing.assert_allclose(model.module.running_mean.array, own, rtol=0, atol=1e-6)
    model.broadcast_buffers = False
    before = model.module.running_mean.array.copy()
    x = np.full((4, 2), t.rank, np.float32)
    model(x)
    np.testing.assert_allclose(model.module.running_mean.array, 0.9 * before + 0.1 * t.rank,
                               rtol=0, atol=1e-6)  # as above


@ranks(2, 3)
def test_half_precision_gradients_sum_in_single(t):
    net = nn.Linear(1, 1, bias=False).half()
    net.weight.array[...] = 1
    model = DataParallel(net, t)
    # each rank's gradient is 40000: their fp16 sum would be infinite, their mean is not
    model(np.full((1, 1), 40000, np.float16)).sum().backward()
    assert net.weight.grad.dtype == np.float16
    assert net.weight.grad.item() == pytest.approx(40000, rel=2**-11)
    net.weight.grad = np.full((1, 1), 40000, np.float16)
    average_gradients(t, [net.weight])
    assert net.weight.grad.dtype == np.float16
    assert net.weight.grad.item() == pytest.approx(40000, rel=2**-11)  # one rounding to float16


@ranks(2)
def test_frozen_parameters_do_not_travel(t):
    net = network()
    net[0].requires_grad_(False)
    model = DataParallel(net, t)
    assert sum(b.flat.size for b in model.reducer.buckets) == sum(p.numel()
                                                                  for p in net[2].parameters())


@ranks(2)
def test_dicts_and_tuples_of_outputs_are_searched(t):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x):
            return {"a": self.a(x), "more": (self.b(x), "text", None)}

    model = DataParallel(Two(), t)
    out = model(np.ones((1, 2), np.float32))
    (out["a"] + out["more"][0]).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(RankFailed, match="rank 0: no parameter requires a gradient"):
        simulate(1, lambda t: DataParallel(nn.ReLU(), t))


def test_state_dict_is_the_wrapped_models():
    def body(t):
        model = DataParallel(network(), t)
        assert list(model.state_dict()) == list(network().state_dict())
        model.load_state_dict({k: v * 0 for k, v in model.state_dict().items()})
        assert all((p.array == 0).all() for p in model.parameters())

    simulate(2, body)
