"""SyncBatchNorm: n ranks with unequal shares, empty ones too, are one rank with the whole batch."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import ring
from minidl.comm.observe.ledger import Ledger
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero2, Zero3
from minidl.parallel.data import sync_batchnorm
from minidl.parallel.data.sync_batchnorm import SyncBatchNorm, merge, share_of
from minidl.precision import amp
from minidl.tensor import Tensor
from tests.conftest import ranks
from tests.devices import host

SIZES = (1, 2, 3, 4, 5, 8)
C = 3
SHAPES = {"2d": (C,), "3d": (C, 4), "4d": (C, 2, 3)}


def cuts(n):
    """Bounds of unequal shares; with more than two ranks the second has nothing."""
    lengths = [2 * k + 1 for k in range(n)]
    if n > 2:
        lengths[1] = 0
    return np.concatenate([[0], np.cumsum(lengths)])


def data(n, shape, dtype="f8", seed=0):
    """(x, gradient of y) of the whole batch; channels with means far from 0."""
    rng = np.random.default_rng(seed)
    size = (int(cuts(n)[-1]), *shape)
    offset = np.arange(1, C + 1).reshape(C, *[1] * (len(shape) - 1)) * 10.0
    return (rng.normal(size=size) + offset).astype(dtype), rng.normal(size=size).astype(dtype)


def mine(t, *arrays):
    here = slice(*cuts(t.size)[t.rank:t.rank + 2])
    return [a[here] for a in arrays]


def layer(module, dtype, **options):
    """Weights that are not one and zero."""
    options = {"momentum": 0.3, **options}
    made = module(C, **options).to(np.dtype(dtype))
    if made.weight is not None:
        made.weight.array[...] = [0.5, -1.5, 2.0]
        made.bias.array[...] = [1.0, 2.0, 3.0]
    return made


def run(norm, x, g):
    """(y, gx, gw, gb) and the running statistics after two batches, the second of 2 x + 1."""
    for scale, shift in ((1, 0), (2, 1)):
        x_in = Tensor(scale * x + shift, requires_grad=True)
        norm.zero_grad()
        y = norm(x_in)
        y.backward(g)
    grads = [x_in.grad] + [] if norm.weight is None else [x_in.grad, norm.weight.grad,
                                                         norm.bias.grad]
    return y.array, grads, [norm.running_mean, norm.running_var]


@pytest.mark.parametrize("shape", SHAPES)
@ranks(*SIZES)
def test_n_ranks_equal_one_rank_on_the_whole_batch(t, shape):
    x, g = data(t.size, SHAPES[shape])
    if t.size == 1:
        x, g = np.concatenate([x, x + 1]), np.concatenate([g, -2 * g])
        here = [x, g]
    else:
        here = mine(t, x, g)
    plain = layer(nn.BatchNorm2d if shape == "4d" else nn.BatchNorm1d, "f8")
    y, (gx, gw, gb), running = run(plain, x, g)
    sync = layer(lambda *a, **k: SyncBatchNorm(*a, t=t, losses="sum", **k), "f8")
    y_here, (gx_here, *g_here), running_here = run(sync, *here)
    close = dict(rtol=1e-10, atol=1e-11)  # float64, sums of a few hundred terms
    want_y, want_gx = (y, gx) if t.size == 1 else mine(t, y, gx)
    np.testing.assert_allclose(y_here, want_y, **close)
    np.testing.assert_allclose(gx_here, want_gx, **close)
    sums = ring.all_reduce(t, np.stack(g_here))  # the share's, for data parallelism to average
    np.testing.assert_allclose(sums, np.stack([gw, gb]), **close)
    for a, b in zip(running_here, running):
        np.testing.assert_allclose(a, b, **close)
    assert int(sync.num_batches_tracked.item()) == 2


@ranks(2, 3)
def test_each_rank_alone_is_something_else(t):
    """Negative control: what the test above compares does depend on the other ranks."""
    x, g = data(t.size, (C, 4))
    y, _, _ = run(layer(nn.BatchNorm1d, "f8"), x, g)
    if t.rank == t.size - 1:
        here, _, _ = run(layer(nn.BatchNorm1d, "f8"), *mine(t, x, g))
        assert abs(here - mine(t, y)[0]).max() > 0.05


@ranks(3, 5)
def test_running_statistics_have_the_same_bits_on_all_ranks(t):
    sync = layer(lambda *a, **k: SyncBatchNorm(*a, t=t, **k), "f4", momentum=None)
    _, _, running = run(sync, *mine(t, *data(t.size, (C, 2, 3), "f4")))
    for a in running:
        most = ring.all_reduce(t, np.array(a), np.maximum)
        np.testing.assert_array_equal(a, most)


def test_merging_keeps_a_small_variance_beside_a_large_mean():
    """1e4 + noise of 0.01 in float32, uneven shares, one of them empty. The mean of squares less
    the square of the mean, which is often written, finds nothing of it."""
    rng = np.random.default_rng(0)
    x = (1e4 + 0.01 * rng.normal(size=(700, 2, 3))).astype("f4")
    parts = np.split(x, [100, 100, 480])
    mean, m2, n = merge(np.stack([share_of(np, p) for p in parts]))
    exact = x.astype("f8").var(axis=(0, 2))
    assert n == 2100
    # float32 holds 1e4 to 1e-3: the mean of a share is off by half of that, squared 2.4e-7
    np.testing.assert_allclose(m2 / n, exact, atol=3e-7)
    naive = (x**2).mean(axis=(0, 2)) - x.mean(axis=(0, 2)) ** 2
    assert abs(naive - exact).max() > 50 * exact.max()


@ranks(2, 3)
def test_eval_takes_the_running_averages_and_sends_nothing(t):
    ledger = Ledger(t)
    norm = layer(lambda *a, **k: SyncBatchNorm(*a, t=ledger, **k), "f8").eval()
    norm.running_mean.array[...] = [1, 2, 3]
    x, _ = data(2, (C,))
    want = layer(nn.BatchNorm1d, "f8").eval()
    want.running_mean.array[...] = [1, 2, 3]
    np.testing.assert_array_equal(norm(Tensor(x)).array, want(Tensor(x)).array)
    assert ledger.bytes_sent == 0


@ranks(*SIZES)
def test_bytes_are_the_formulas(t):
    """Two collectives; recompute issues the forward's twice; no_grad has the forward's alone."""
    x, g = data(t.size, (C, 4), "f4")
    x, g = [x, g] if t.size == 1 else mine(t, x, g)
    x, g = np.concatenate([x, x + 1]), np.concatenate([g, g])
    forward, backward = sync_batchnorm.bytes_sent(C, 4, t.size, t.rank)
    assert forward == 4 * (2 * C + 1) * (t.size - 1)
    for again, want in ((False, forward + backward), (True, 2 * forward + backward)):
        ledger = Ledger(t)
        norm = SyncBatchNorm(C, t=ledger)
        x_in = Tensor(x, requires_grad=True)
        y = recompute(norm, x_in) if again else norm(x_in)
        assert ledger.bytes_sent == forward
        y.backward(g)
        assert ledger.bytes_sent == want
        assert int(norm.num_batches_tracked.item()) == 1  # replayed, not counted again


@ranks(2)
def test_recompute_has_the_same_bits(t):
    x, g = mine(t, *data(2, (C, 4), "f4"))
    results = []
    for wrap in (lambda norm, x: norm(x), recompute):
        norm, x_in = SyncBatchNorm(C, t=t), Tensor(x, requires_grad=True)
        wrap(norm, x_in).backward(g)
        results.append([x_in.grad, norm.weight.grad, norm.running_mean, norm.running_var])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


class Net(nn.Module):
    """Convolution, norm, linear, norm: batch norm by default, converted on ranks."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.blocks = nn.ModuleList([nn.Linear(4 * 9, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)])

    def forward(self, x):
        x = F.relu(self.bn1(self.conv(x))).flatten(1)
        for block in self.blocks:
            x = block(x)
        return x


def net(dtype="f8"):
    minidl.manual_seed(1)
    return Net().to(np.dtype(dtype))


def batch(n, dtype="f8", seed=0):
    rng = np.random.default_rng(seed)
    n_rows = int(cuts(n)[-1]) + 1
    return rng.normal(size=(n_rows, 2, 3, 3)).astype(dtype), rng.normal(
        size=(n_rows, 2)).astype(dtype)


def my_part(t, *arrays):
    """The last rank has one more; with more than two ranks the second has nothing."""
    low, high = cuts(t.size)[t.rank:t.rank + 2]
    return [a[low:high + (t.rank == t.size - 1)] for a in arrays]


def loss_of(model, x, y):
    """The mean over this rank's samples; of none, zero, and yet joined to the model."""
    error = ((model(x) - y) ** 2).sum(dim=1)
    return error.mean() if len(x) else error.sum()


def serial(n, n_micro=1):
    alone = net()
    for step in range(2):
        alone.zero_grad()
        for micro in range(n_micro):
            x, y = batch(n, seed=10 * step + micro)
            (loss_of(alone, x, y) / n_micro).backward()
        for p in alone.parameters():
            p.data -= 0.1 * p.grad
    return alone.state_dict()


def assert_state(got, want, **close):
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, err_msg=name, **close)


# float64 sums of some dozens of terms in another order, two steps
CLOSE = dict(rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("overlap", [True, False])
@ranks(*SIZES)
def test_data_parallel_trains_what_one_rank_trains(t, overlap):
    """Uneven shares, an empty one; each bucket is sent while backward waits for norms."""
    model = DataParallel(SyncBatchNorm.convert(net(), t), t, overlap=overlap, bucket_bytes=64,
                         first_bucket_bytes=8, broadcast_buffers=False)
    for step in range(2):
        model.zero_grad()
        x, y = my_part(t, *batch(t.size, seed=10 * step))
        loss_of(model, x, y).backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
    state = model.state_dict()
    model.close()
    assert_state(state, serial(t.size), **CLOSE)


@ranks(2, 3)
def test_an_uneven_batch_trains_something_else_without_the_weights(t):
    """Negative control: what ranks tell each other in backward, as if shares were equal."""
    sums = SyncBatchNorm.convert(net(), t, losses="sum")
    model = DataParallel(sums, t, broadcast_buffers=False)
    loss_of(model, *my_part(t, *batch(t.size))).backward()
    alone = net()
    loss_of(alone, *batch(t.size)).backward()
    pairs = [(p.grad.array, q.grad.array)
             for p, q in zip(model.parameters(), alone.parameters(), strict=True)]
    model.close()
    assert max(abs(a - b).max() for a, b in pairs) > 1e-3


@ranks(2, 3)
def test_no_sync_accumulates_gradients_and_still_joins_statistics(t):
    model = DataParallel(SyncBatchNorm.convert(net(), t), t, broadcast_buffers=False)
    for step in range(2):
        model.zero_grad()
        parts = [my_part(t, *batch(t.size, seed=10 * step + micro)) for micro in range(2)]
        with model.no_sync():  # a sum over samples: DataParallel divides by those of both
            (loss_of(model, *parts[0]) / 2).backward()
        (loss_of(model, *parts[1]) / 2).backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
    state = model.state_dict()
    model.close()
    assert_state(state, serial(t.size, n_micro=2), **CLOSE)


@pytest.mark.parametrize("stage", [Zero2, Zero3])
@ranks(2, 3)
def test_under_zero(t, stage):
    model = stage(SyncBatchNorm.convert(net(), t), t, broadcast_buffers=False)
    for step in range(2):
        model.zero_grad()
        loss_of(model, *my_part(t, *batch(t.size, seed=10 * step))).backward()
        for shard in model.shards():
            shard.data -= 0.1 * shard.grad
            shard.version += 1
        model.gather()
    state = model.state_dict()
    model.close()
    assert_state(state, serial(t.size), **CLOSE)


@ranks(2, 3)
def test_under_autocast_statistics_are_float32(t):
    """fp16 activations: as plain batch norm under autocast on the whole batch, within fp16."""
    x, y = batch(t.size, "f4")
    alone = net("f4")
    with amp.autocast():
        want = alone(x)
    model = SyncBatchNorm.convert(net("f4"), t)
    with amp.autocast():
        got = model(my_part(t, x)[0])
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.array, my_part(t, want.array)[0], rtol=4e-3, atol=4e-3)
    assert_state(model.state_dict(), alone.state_dict(), rtol=2e-3, atol=2e-3)
    amp.prepare(model, "O2")
    assert model.bn1.weight.dtype == np.float32 and model.conv.weight.dtype == np.float16


def test_convert_keeps_names_parameters_and_hooks():
    def body(t):
        model = net()
        model.again = model.bn1  # at two places
        calls = []
        model.bn1.register_forward_hook(lambda *_: calls.append(1))
        model.blocks[1].eval()
        before, params = model.state_dict(), list(model.parameters())
        assert SyncBatchNorm.convert_sync_batchnorm(model, t) is model
        assert type(model.bn1) is type(model.blocks[1]) is nn.SyncBatchNorm
        assert model.again is model.bn1 and not model.blocks[1].training
        assert all(a is b for a, b in zip(params, model.parameters(), strict=True))
        assert list(model.state_dict()) == list(before)
        once = model.bn1
        assert SyncBatchNorm.convert(model, t).bn1 is once  # already done
        assert type(SyncBatchNorm.convert(nn.BatchNorm1d(3), t)) is SyncBatchNorm
        model.train()(Tensor(batch(1)[0]))
        assert calls == [1]

    minidl.comm.simulate(1, body)


@ranks(2)
def test_wrong_inputs_are_named_on_every_rank(t):
    norm = SyncBatchNorm(C, t=t)
    x = np.ones((int(t.rank == 0), C), np.float32)
    with pytest.raises(ValueError, match="at least 2 values of a channel on all ranks .*; got 1"):
        norm(Tensor(x))
    with pytest.raises(ValueError, match="wants 3 channels; got 4"):
        norm(Tensor(np.ones((2, C + 1), np.float32)))


@ranks(2)
def test_a_rank_without_a_batch_passes_an_empty_one(t):
    model = DataParallel(SyncBatchNorm.convert(net("f4"), t), t)
    with pytest.raises(TypeError, match="absent.* the layer bn1 waits for all ranks"):
        model.absent()
    model.close()


def test_no_affine_and_no_averages():
    def body(t):
        norm = SyncBatchNorm(C, affine=False, track_running_stats=False, t=t, losses="sum")
        x, g = mine(t, *data(2, (C, 4)))
        x_in = Tensor(x, requires_grad=True)
        y = norm(x_in)
        y.backward(g)
        with pytest.raises(ValueError, match="losses='sum'; got 'all'"):
            SyncBatchNorm(C, t=t, losses="all")
        whole, gradient = data(2, (C, 4))
        plain, w_in = nn.BatchNorm1d(C, affine=False), Tensor(whole, requires_grad=True)
        want = plain(w_in)
        want.backward(gradient)
        np.testing.assert_allclose(y.array, mine(t, want.array)[0], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(x_in.grad, mine(t, w_in.grad)[0], rtol=1e-10, atol=1e-11)

    minidl.comm.simulate(2, body)


@pytest.mark.gpu
def test_on_a_gpu_as_on_the_cpu():
    """Values, gradients and averages; messages go through host memory."""
    def body(t):
        results = []
        for device in ("cpu", "cuda"):
            norm = SyncBatchNorm(C, t=t).to(device)
            x, g = (minidl.tensor(a, device=device) for a in mine(t, *data(2, (C, 4), "f4")))
            x.requires_grad_()
            y = norm(x)
            y.backward(g)
            results.append([host(a) for a in (y.array, x.grad, norm.weight.grad, norm.bias.grad,
                                              norm.running_mean.array, norm.running_var.array)])
        for a, b in zip(*results):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    minidl.comm.simulate(2, body)
