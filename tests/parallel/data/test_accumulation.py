"""What is sent is what is new, weighted by the samples of exactly that.

Random sequences of forwards and backwards on 1 to 4 ranks, against one rank with all samples: under
no_sync and not, branches that some passes leave out, gradients that are thrown away, forwards that
no backward follows.
"""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import codec, simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.data.compress import Compressed, ErrorFeedback
from minidl.parallel.data.dgc import DGC
from minidl.parallel.data.powersgd import PowerSGD
from tests.conftest import n_drawn

WIDTH = 4
SEEDS = range(n_drawn(12, 60))


class Branches(nn.Module):
    """A layer for all, and two of which a pass may use one, both or none."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.a, self.b = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
        self.rest = nn.Linear(WIDTH, 1)

    def forward(self, x, branches):
        h = self.first(x).tanh()
        y = self.rest(h)
        for name in branches:
            y = y + getattr(self, name)(h)
        return y


def model():
    minidl.manual_seed(0)
    return Branches().double()


def sequence(seed, n_ranks):
    """[(what, branches, samples of each rank)], which ends with a pass that sends."""
    rng = np.random.default_rng([seed, n_ranks])
    steps = []
    for _ in range(rng.integers(1, 7)):
        what = rng.choice(["no_sync", "no_sync", "send", "zero_grad", "zeros", "metric", "skipped"])
        branches = str(rng.choice(["", "a", "b", "ab"]))
        steps.append((what, branches, rng.integers(1, 4, n_ranks)))
    return [*steps, ("send", str(rng.choice(["", "a", "b"])), rng.integers(1, 4, n_ranks))]


def batches(seed, n_ranks):
    """The samples of each rank, step by step."""
    rng = np.random.default_rng([seed, n_ranks, 1])
    return [[rng.standard_normal((n, WIDTH)) for n in counts]
            for _, _, counts in sequence(seed, n_ranks)]


def wanted(seed, n_ranks, sums=False):
    """Gradients of one rank; sums: of all passes that send, whether they were forgotten or not.

    A window is what lies between two passes that send. Its gradient is
    sum_r n_r mean_r / sum_r n_r: rank r's gradients of the window are added up, and n_r are its
    samples of the window."""
    net = model()
    total = {name: None for name, _ in net.named_parameters()}
    window = [[] for _ in range(n_ranks)]  # of each rank (branches, its batch)

    for (what, branches, _), xs in zip(sequence(seed, n_ranks), batches(seed, n_ranks)):
        if what in ("zero_grad", "zeros"):  # set_to_none=False leaves zeros where there were others
            total = total if sums else {name: None if what == "zero_grad" or g is None else 0 * g
                     for name, g in total.items()}
            window = [[] for _ in range(n_ranks)]
        if what in ("no_sync", "send"):
            for rank, x in enumerate(xs):
                window[rank].append((branches, x))
        if what == "send":
            weights = [sum(len(x) for _, x in passes) for passes in window]
            means = dict.fromkeys(total)
            for rank, passes in enumerate(window):
                net.zero_grad()
                for used, x in passes:
                    net(x, used).mean().backward()
                for name, p in net.named_parameters():
                    if p.grad is not None:
                        part = p.grad * weights[rank] / sum(weights)
                        means[name] = part if means[name] is None else means[name] + part
            for name, mean in means.items():
                if mean is not None:
                    total[name] = mean if total[name] is None else total[name] + mean
            window = [[] for _ in range(n_ranks)]
    return total


def gradients(t, seed, wrap):
    net = model()
    dp = run(t, seed, net, wrap)
    found = {name: None if p.grad is None else np.array(p.grad)
             for name, p in net.named_parameters()}
    dp.close()
    return found


def run(t, seed, net, wrap, sent=None):
    """The wrapped model after the sequence; sent() is called after each pass that sends."""
    dp = wrap(net, t)
    for (what, branches, _), xs in zip(sequence(seed, t.size), batches(seed, t.size)):
        x = xs[t.rank]
        if what in ("zero_grad", "zeros"):
            dp.zero_grad(set_to_none=what == "zero_grad")
        elif what == "metric":
            with minidl.no_grad():
                dp(x, branches)
        elif what == "skipped":  # its loss was nan: no backward
            with dp.no_sync():
                dp(x, branches)
        elif what == "no_sync":
            with dp.no_sync():
                dp(x, branches).mean().backward()
        else:
            dp(x, branches).mean().backward()
            if sent is not None:
                sent()
    return dp


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_any_sequence_gives_the_gradients_of_one_rank(seed, n_ranks):
    expected = wanted(seed, n_ranks)
    for found in simulate(n_ranks, gradients, seed, DataParallel):
        for name, g in expected.items():
            if g is None:  # or zeros, where set_to_none=False has left the array of a local pass
                assert found[name] is None or not found[name].any(), name
            else:  # sums in another order
                np.testing.assert_allclose(found[name], g, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_any_sequence_gives_the_gradients_of_one_rank_in_shards_too(n_ranks, stage, seed):
    expected = wanted(seed, n_ranks)
    for shards in simulate(n_ranks, scattered, seed, stage):
        for name, first, end, g in shards:
            want = np.zeros(end) if expected[name] is None else expected[name].reshape(-1)[:end]
            np.testing.assert_allclose(g, want[first:], rtol=1e-12, atol=1e-14, err_msg=name)


def scattered(t, seed, stage):
    """[(name, first, end, this rank's gradient of these elements)]"""
    net = model()
    zero = run(t, seed, net, stage)
    names = {p: name for name, p in net.named_parameters()}
    found = [(names[p], first, end, np.array(shard.grad[at:at + end - first]))
             for _, shard, p, at, first, end in zero.parts() if first < end]
    zero.close()
    return found


METHODS = {
    "int8": lambda: ErrorFeedback(codec.INT8), "half": lambda: ErrorFeedback(codec.FP16),
    "DGC": lambda: DGC(momentum=0, sparsity=0.5, min_size=2),
    "PowerSGD": lambda: PowerSGD(rank=1, min_compression_rate=0.1),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_of_compressed_gradients_nothing_is_lost_and_nothing_comes_twice(n_ranks, method, seed):
    """What all steps together have given, and what the ranks still owe, is the sum of all means.
    The gradients are forgotten after each pass that sends, as compression wants it."""
    results = simulate(n_ranks, compressed, seed, method)
    for name, mean in wanted(seed, n_ranks, sums=True).items():
        got = results[0][0][name] + sum(owed[name] for _, owed in results)
        mean = np.zeros_like(got) if mean is None else mean
        # DGC's values and FP16's travel in 4 and 2 bytes; what that rounds stays owed
        np.testing.assert_allclose(got, mean, rtol=1e-6, atol=1e-7, err_msg=f"{name} {method}")


def compressed(t, seed, method):
    net = model()
    given = {name: np.zeros(p.shape) for name, p in net.named_parameters()}

    def sent():
        for name, p in net.named_parameters():
            if p.grad is not None:
                given[name] += p.grad.array
        net.zero_grad()

    dp = run(t, seed, net, lambda net, t: Compressed(net, t, METHODS[method]()), sent)
    names = {p: name for name, p in net.named_parameters()}
    owed = {names[p]: np.array(view) for bucket in dp.reducer.buckets
            for p, view in zip(bucket.params, bucket.views_of("residual"))}
    dp.close()
    return given, owed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_compressed_mean_that_is_still_there_is_no_gradient_of_the_next_pass(dtype):
    """Whatever the dtype of the parameters, and so whoever owns the array of the mean."""
    def body(t):
        dp = Compressed(model().to(dtype), t, ErrorFeedback())
        x = np.ones((2, WIDTH), dtype)
        dp(x, "ab").mean().backward()
        dp(x, "ab").mean().backward()

    with pytest.raises(RankFailed, match="Call zero_grad"):
        simulate(2, body)


def test_zero_grad_of_the_optimizer_forgets_whole_gradients_that_wait_under_no_sync():
    def body(t, throws_away):
        net = model()
        zero = Zero1(net, t)
        optimizer = optim.SGD(zero.shards(), lr=1.0)
        x = np.random.default_rng(t.rank).standard_normal((3, WIDTH))
        if throws_away:
            with zero.no_sync():
                zero(x, "ab").mean().backward()
            optimizer.zero_grad()
        zero(x, "a").mean().backward()
        found = [np.array(s.grad) for s in zero.shards()]
        zero.close()
        return found

    for got, want in zip(simulate(2, body, True), simulate(2, body, False), strict=True):
        for g, w in zip(got, want, strict=True):
            assert np.array_equal(g, w)
