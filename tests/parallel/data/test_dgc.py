"""Deep gradient compression against the paper's four lines, written for all ranks in one loop."""

import math

import numpy as np
import pytest

from minidl import nn, optim
from minidl.comm import codec, simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel import DGC, Compressed, DataParallel, ErrorFeedback
from minidl.plain import naive
from tests.conftest import ranks
from tests.parallel.data.test_data_parallel import assert_equal_on_all_ranks, data, network, share

SIZES = (1, 2, 3, 4, 5, 8)
SHAPE = (20, 15)


class Given(nn.Module):
    """A model whose gradients are what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(np.zeros(SHAPE))
        self.bias = nn.Parameter(np.zeros(7))

    def forward(self, gw, gb):
        return (self.weight * gw).sum() + (self.bias * gb).sum()


def given(rank, step, n):
    """Gradients whose share of 1/n is a whole number, other on every rank; indices meet."""
    rng = np.random.default_rng([rank, step])
    return tuple(n * rng.integers(-99, 100, shape).astype(float) for shape in (SHAPE, 7))


def by_the_paper(n, ks, m, nesterov=False, masking=True, dense=False):
    """What weight (or, dense, bias) gets in each step: the paper's algorithm, one rank after the
    other, k elements of ks in a step; (updates, what each rank has left of u and v)."""
    shape = 7 if dense else SHAPE
    us, vs = (np.zeros((n, math.prod(np.atleast_1d(shape)))) for _ in range(2))
    updates = []
    for step, k in enumerate(ks):
        update = np.zeros(us.shape[1])
        for r in range(n):
            g = given(r, step, n)[dense].reshape(-1) / n
            if nesterov:
                us[r] = m * (us[r] + g)
                vs[r] += us[r] + g
            else:
                us[r] = m * us[r] + g
                vs[r] += us[r]
            sent = slice(None) if dense else np.argsort(-np.abs(vs[r]), kind="stable")[:k]
            update[sent] += vs[r][sent]
            vs[r][sent] = 0
            if masking and not dense:
                us[r][sent] = 0
        updates.append(update.reshape(shape))
    return updates, us, vs


def run(t, method, n_steps):
    """The gradients that weight and bias get in each step, and the model."""
    net = Given()
    model = Compressed(net, t, method)
    got = []
    for step in range(n_steps):
        for p in net.parameters():
            p.grad = None
        model(*given(t.rank, step, t.size), n_samples=1).backward()
        got.append((net.weight.grad.array.copy(), net.bias.grad.array.copy()))
    model.close()
    return got, model


@pytest.mark.parametrize("options", [
    {}, {"nesterov": True}, {"masking": False}, {"momentum": 0.0},
    {"warm_up": (0.5, 0.8), "stage_steps": 2}])
@ranks(*SIZES)
def test_every_step_is_the_papers_to_the_bit(t, options):
    """Whole numbers and a momentum of 1/2: nothing rounds."""
    options = {"momentum": 0.5} | options
    got, model = run(t, DGC(sparsity=0.9, min_size=1, **options), 5)
    m = options.pop("momentum")
    ks = [150, 150, 60, 60, 30] if options.pop("warm_up", ()) else [30] * 5
    options.pop("stage_steps", 0)
    weight, us, vs = by_the_paper(t.size, ks, m, **options)
    bias, _, _ = by_the_paper(t.size, ks, m, dense=True, **options)
    for (gw, gb), w, b in zip(got, weight, bias):
        np.testing.assert_array_equal(gw, w)
        np.testing.assert_array_equal(gb, b)
        assert_equal_on_all_ranks(t, [gw, gb])
    bucket, = model.reducer.buckets
    for kind, want in (("momentum", us), ("residual", vs)):
        kept = dict(zip(bucket.params, bucket.views_of(kind)))[model.module.weight]
        np.testing.assert_array_equal(kept.reshape(-1), want[t.rank])


@ranks(*SIZES)
def test_what_was_sent_and_what_waits_is_what_was_accumulated_exactly(t):
    got, model = run(t, DGC(momentum=0.5, sparsity=0.99, min_size=1, masking=False), 6)
    # without masking u does not depend on what was sent: the sum of all velocities
    u, accumulated = np.zeros(SHAPE), np.zeros(SHAPE)
    for step in range(6):
        u = 0.5 * u + given(t.rank, step, t.size)[0] / t.size
        accumulated += u
    bucket, = model.reducer.buckets
    rest = dict(zip(bucket.params, bucket.views_of("residual")))[model.module.weight]
    total = naive.all_reduce(t, accumulated)
    owed = naive.all_reduce(t, rest.copy())
    np.testing.assert_array_equal(sum(gw for gw, _ in got) + owed, total)
    assert np.abs(owed).max() > 0


@pytest.mark.parametrize("nesterov", [False, True])
@ranks(1, 2, 4)
def test_with_nothing_left_out_it_is_sgd_with_momentum(t, nesterov):
    """Without masking, that is: what is sent in every step would never have momentum."""
    results = []
    for compress in (False, True):
        net = network()
        if compress:
            model = Compressed(net, t, DGC(0.9, sparsity=0, nesterov=nesterov, min_size=1,
                                            masking=False))
            opt = optim.SGD(net.parameters(), lr=0.5)
        else:
            model = DataParallel(net, t)
            opt = optim.SGD(net.parameters(), lr=0.5, momentum=0.9, nesterov=nesterov)
        for step in range(4):
            x, y = data(13, seed=step)
            mine = share(t, 13)
            opt.zero_grad()
            F.cross_entropy(model(x[mine]), y[mine]).backward()
            opt.step()
        model.close()
        results.append([p.array for p in net.parameters()])
    for a, b in zip(*results):
        # pairs travel in float32, and what that rounds away comes a step later
        np.testing.assert_allclose(b, a, rtol=0, atol=4 * 2.0**-24)


def test_the_sparsities_of_the_warm_up_are_the_papers():
    method = DGC(stage_steps=10)
    stages = [method.sparsity_at(step) for step in (0, 9, 10, 20, 30, 39, 40, 10**6)]
    assert stages == [0.75, 0.75, 0.9375, 0.984375, 0.996, 0.996, 0.999, 0.999]
    assert 1 - np.array(stages[1:4]) == pytest.approx([4.0**-1, 4.0**-2, 4.0**-3])
    w = nn.Parameter(np.zeros((1000, 100), np.float32))
    assert [method.n_sent(w, step) for step in (0, 10, 20, 30, 40)] == [25000, 6250, 1563, 400, 100]
    assert method.n_sent(nn.Parameter(np.zeros(10**5)), 40) is None
    assert method.n_sent(nn.Parameter(np.zeros((10, 10))), 40) is None
    assert DGC().sparsity_at(0) == 0.999  # no warm-up unless one is asked for


@ranks(1, 2, 4)
def test_shares_are_clipped_before_they_are_added(t):
    limit = 8.0
    got, _ = run(t, DGC(momentum=0.0, sparsity=0, min_size=1, clip_norm=limit), 1)
    want = np.zeros(SHAPE)
    for r in range(t.size):
        g = given(r, 0, t.size)[0] / t.size
        want += g * min(1, limit / math.sqrt(t.size) / np.linalg.norm(g))
    np.testing.assert_allclose(got[0][0], want, rtol=1e-6, atol=1e-6)  # pairs are float32
    assert np.linalg.norm(got[0][0]) <= limit * (1 + 1e-6)


@pytest.mark.parametrize("make, got", [
    (lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), r"SGD\(momentum=0.9\)"),
    (lambda ps: optim.AdamW(ps), "AdamW"),
])
def test_an_optimizer_that_would_apply_momentum_again_is_refused(make, got):
    def body(t):
        net = network()
        model, opt = Compressed(net, t, DGC()), make(net.parameters())
        x, y = data(8)
        F.cross_entropy(model(x), y).backward()
        opt.step()

    with pytest.raises(RankFailed, match=rf"wanted optim.SGD\(momentum=0\), got {got}"):
        simulate(2, body)


@pytest.mark.parametrize("method", [lambda: ErrorFeedback(codec.FP16), lambda: DGC(momentum=0)])
def test_any_optimizer_takes_a_mean(method):
    def body(t):
        net = network()
        model, opt = Compressed(net, t, method()), optim.AdamW(net.parameters())
        x, y = data(8)
        F.cross_entropy(model(x), y).backward()
        opt.step()
        model.close()

    simulate(2, body)


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"sparsity": 1.0}, {"clip_norm": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="DGC wants"):
        DGC(**options)


@ranks(4, mpi=False)
def test_masking_stops_the_momentum_of_what_has_been_sent(t):
    """One gradient, then none: with masking each element arrives once and u is empty; without, old
    momentum goes on and the weight gets up to 1 / (1 - m) times its gradient."""
    totals = []
    for masking in (True, False):
        net = Given()
        method = DGC(momentum=0.5, sparsity=0.9, min_size=1, masking=masking)
        model = Compressed(net, t, method)
        total = np.zeros(SHAPE)
        for step in range(40):
            net.weight.grad = net.bias.grad = None
            gw, gb = given(t.rank, 0, t.size)
            model(gw * (step == 0), gb * 0, n_samples=1).backward()
            total += net.weight.grad.array
        model.close()
        totals.append(np.abs(total).sum())
    assert totals[1] > 1.2 * totals[0]
