"""What is sent is what is new, weighted by the samples of exactly that.

Random sequences of forwards and backwards on 1 to 4 ranks, against one rank with all samples: under
no_sync and not, branches that some passes leave out, gradients that are thrown away, forwards that
no backward follows.
"""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import simulate
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from tests.conftest import EVERY

WIDTH = 4
SEEDS = range(60 if EVERY else 12)


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
        what = rng.choice(["no_sync", "no_sync", "send", "zero_grad", "metric", "skipped"])
        branches = str(rng.choice(["", "a", "b", "ab"]))
        steps.append((what, branches, rng.integers(1, 4, n_ranks)))
    return [*steps, ("send", str(rng.choice(["", "a", "b"])), rng.integers(1, 4, n_ranks))]


def batches(seed, n_ranks):
    """The samples of each rank, step by step."""
    rng = np.random.default_rng([seed, n_ranks, 1])
    return [[rng.standard_normal((n, WIDTH)) for n in counts]
            for _, _, counts in sequence(seed, n_ranks)]


def wanted(seed, n_ranks):
    """Gradients of one rank. A window is what lies between two passes that send: its gradient is
    that of sum_r n_r mean_r / sum_r n_r, where rank r's gradients of the window are added up and
    n_r are its samples of the window."""
    net, sums = model(), {}
    total = {name: None for name, _ in net.named_parameters()}
    window = [[] for _ in range(n_ranks)]  # of each rank (branches, its batch)

    for (what, branches, _), xs in zip(sequence(seed, n_ranks), batches(seed, n_ranks)):
        if what == "zero_grad":
            total = dict.fromkeys(total)
            window = [[] for _ in range(n_ranks)]
        if what in ("no_sync", "send"):
            for rank, x in enumerate(xs):
                window[rank].append((branches, x))
        if what == "send":
            weights = [sum(len(x) for _, x in passes) for passes in window]
            sums = dict.fromkeys(total)
            for rank, passes in enumerate(window):
                net.zero_grad()
                for used, x in passes:
                    net(x, used).mean().backward()
                for name, p in net.named_parameters():
                    if p.grad is not None:
                        part = p.grad * weights[rank] / sum(weights)
                        sums[name] = part if sums[name] is None else sums[name] + part
            for name, mean in sums.items():
                if mean is not None:
                    total[name] = mean if total[name] is None else total[name] + mean
            window = [[] for _ in range(n_ranks)]
    return total


def gradients(t, seed, wrap):
    net = model()
    dp = wrap(net, t)
    for (what, branches, _), xs in zip(sequence(seed, t.size), batches(seed, t.size)):
        x = xs[t.rank]
        if what == "zero_grad":
            net.zero_grad()
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
    found = {name: None if p.grad is None else np.array(p.grad)
             for name, p in net.named_parameters()}
    dp.close()
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_any_sequence_gives_the_gradients_of_one_rank(seed, n_ranks):
    expected = wanted(seed, n_ranks)
    for found in simulate(n_ranks, gradients, seed, DataParallel):
        for name, g in expected.items():
            assert (found[name] is None) == (g is None), name
            if g is not None:  # sums in another order
                np.testing.assert_allclose(found[name], g, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
def test_a_branch_of_a_pass_that_did_not_send_is_averaged_by_zero_too(stage):
    x = np.random.default_rng(0).standard_normal((6, WIDTH))

    def shards(t, wrap):
        dp = wrap(model(), t)
        mine = x[3 * t.rank : 3 * t.rank + 3]
        if wrap is Zero3:  # it has no no_sync pass whose weights are freed between
            dp(mine, "ab").mean().backward()
        else:
            with dp.no_sync():
                dp(mine, "b").mean().backward()
            dp(mine, "a").mean().backward()
        found = [np.array(s.grad) for s in dp.shards()]
        dp.close()
        return found

    two, one = simulate(2, shards, stage), simulate(1, lambda t: whole(stage))[0]
    joined = np.sort(np.concatenate([g for shard in two for g in shard]))
    np.testing.assert_allclose(joined, np.sort(one), rtol=1e-12, atol=1e-14)


def whole(stage):
    """All gradients of the same passes on one rank with all six samples, as a vector."""
    net, x = model(), np.random.default_rng(0).standard_normal((6, WIDTH))
    for branches in ["ab"] if stage is Zero3 else ["b", "a"]:
        net(x, branches).mean().backward()
    return np.concatenate([p.grad.reshape(-1) for p in net.parameters()])
