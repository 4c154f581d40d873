"""How stale pushes are, under each rule, and what that costs: stability, time to a loss."""

import math

import numpy as np
import pytest

import minidl
from minidl import optim
from minidl.comm import simulate
from minidl.comm.transport.links import Links
from minidl.comm.transport.scheduler import RankFailed
from minidl.parallel.server.rules import ASYNC, SYNC, bounded
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.tensor import Tensor
from tests.parallel.server.test_server import weights


def train_with_speeds(rule, speeds, n_steps=12, links=None, slower=None):
    """The server of a simulated run in which worker i takes speeds[i] seconds a gradient."""

    def body(t):
        params = weights(3)
        if t.rank == 0:
            server = Server(t, params, 1, rule, lambda shard: optim.SGD(shard, lr=0.01),
                            slower=slower)
            server.text = server.serve()
            return server
        with Worker(t, params) as worker:
            for step in range(n_steps):
                worker.pull()
                seconds = speeds[t.rank - 1]
                t.compute(seconds(step) if callable(seconds) else seconds)
                params[0].grad = params[0].array
                worker.push()

    return simulate(1 + len(speeds), body, links=links)[0]


@pytest.mark.parametrize("n_workers", [1, 2, 3, 7])
def test_equal_workers_are_n_minus_1_updates_stale(n_workers):
    server = train_with_speeds(ASYNC, [1.0] * n_workers)
    # in the first round worker i meets i updates, from then on all others' since its own pull
    first = [met - read for _, read, met, _ in server.log[:n_workers]]
    assert first == list(range(n_workers))
    assert {met - read for _, read, met, _ in server.log[n_workers:]} <= {n_workers - 1}
    assert sum(server.staleness().values()) == 12 * n_workers == server.version


def test_sync_is_never_stale_and_never_ahead():
    server = train_with_speeds(SYNC, [1.0, 3.0, 0.5])
    assert set(server.staleness()) == {0} and set(server.leads.values()) == {0}
    assert server.version == 12


@pytest.mark.parametrize("s", [0, 1, 2, 5])
@pytest.mark.parametrize("speeds", [[1, 1, 1], [1, 4, 1], [1, 30, 2, 1]])
def test_bounded_staleness_is_bounded_and_the_bound_is_reached(s, speeds):
    server = train_with_speeds(bounded(s), speeds, n_steps=20)
    others = len(speeds) - 1
    assert max(server.leads.values()) <= s
    assert max(server.staleness()) <= others * (2 * s + 1)
    assert [server.staleness(w).total() for w in (1, 2, 3)] == [20] * 3, "nobody waits for ever"
    if max(speeds) > 1:
        assert max(server.leads.values()) == s
        free = train_with_speeds(ASYNC, speeds, n_steps=20)  # the control: nothing bounds it
        assert max(free.leads.values()) > 5


def last_push(server, *workers):
    return max(when for who, _, _, when in server.log if who in workers)


@pytest.mark.parametrize("s", [0, 1, 3])
def test_bounded_staleness_goes_on_without_a_straggler_and_keeps_its_bound(s):
    """Worker 3 takes 10 s a step, the others 1 s and 1.5 s: they wait for its first push, which
    shows it; then no more. What it pushes later than the bound is not applied."""
    speeds, n = [1.0, 1.5, 10.0], 20
    server = train_with_speeds(bounded(s), speeds, n, slower=2.0)
    waits = train_with_speeds(bounded(s), speeds, n)  # negative control
    assert last_push(waits, 1, 2) >= 10.0 * (n - 1 - s)
    assert last_push(server, 1, 2) < 10.0 + 1.6 * n
    assert server.dropped[3] > 0 == server.dropped[1] + server.dropped[2]
    # stale are the straggler's own pushes and those of others meanwhile, all within the bound
    assert max(server.staleness()) <= 2 * (2 * s + 1)
    assert server.staleness(3).total() + server.dropped[3] == n == server.staleness(1).total()
    assert max(server.leads.values()) <= s


def test_a_worker_that_was_slow_for_a_time_is_waited_for_again():
    speeds = [1.0, 1.0, lambda step: 10.0 if step < 2 else 1.0]
    server = train_with_speeds(bounded(1), speeds, 40, slower=2.0)
    assert not server.slow and max(server.leads.values()) <= 1
    late = [who for who, _, _, when in server.log if when > 22.5]
    assert late.count(3) >= late.count(1) > 5
    # with the clock of the others: none of them waits until it has made as many pushes
    times = [when for who, _, _, when in server.log if who == 1 and when > 12]
    assert np.diff(times).max() < 2.5


def test_where_nobody_is_slow_the_log_is_the_same():
    for rule in (ASYNC, bounded(1)):
        plain = train_with_speeds(rule, [1.0, 1.2, 1.5])
        assert train_with_speeds(rule, [1.0, 1.2, 1.5], slower=2.0).log == plain.log


@pytest.mark.parametrize("rule, slower", [(SYNC, 2.0), (ASYNC, 1.0)])
def test_a_rule_that_needs_all_and_a_ratio_of_1_are_refused(rule, slower):
    with pytest.raises(RankFailed, match="slower= wants a number above 1"):
        train_with_speeds(rule, [1.0], slower=slower)


def test_a_straggler_of_the_links_is_visible_in_the_report():
    links = Links.uniform(1e-5, 1e-9, straggler={2: 3.0})
    server = train_with_speeds(ASYNC, [1.0, 1.0, 1.0], links=links)
    assert server.staleness(2).total() == 12
    mean = {w: sum(k * n for k, n in server.staleness(w).items()) / 12 for w in (1, 2, 3)}
    assert max(server.staleness(2)) == 6, "two others, three pushes each"
    assert max(server.staleness(1)) <= 2 and mean[2] > max(mean[1], mean[3])
    rows = {line.split()[0]: line.split() for line in server.text.splitlines()[2:]}
    assert {w: row[1] for w, row in rows.items()} == {"1": "12", "2": "12", "3": "12"}
    # worker 1 was done after 12 of 36 s; what messages take is below the digits of the report
    assert rows["2"][2] == f"{mean[2]:.2f}" and float(rows["1"][5]) == pytest.approx(24, abs=0.01)


# -- what staleness costs


def largest_stable_rate(tau, low=0.0, high=2.2, n_rates=41, n_pushes=600):
    """The largest rate, of n_rates from low to high, at which gradient descent on x^2/2 with
    gradients tau updates old does not grow. Each coordinate has a rate of its own, so one run
    tries them all."""
    rates = np.linspace(low, high, n_rates)

    def body(t):
        x = Tensor(np.ones(n_rates), requires_grad=True)
        if t.rank == 0:
            server = Server(t, [x], 1, ASYNC, lambda shard: optim.SGD(shard, lr=1.0))
            sizes = []
            step = server.update

            def update(values):
                step(values)
                sizes.append(np.abs(x.array))

            server.update = update
            server.serve()
            assert set(server.staleness()) == set(range(tau + 1))  # tau, but for the first round
            return np.array(sizes)
        with Worker(t, [x]) as worker:
            for _ in range(n_pushes // (tau + 1)):
                worker.pull()
                t.compute(1.0)
                x.grad = rates * x.array
                worker.push()

    sizes = simulate(tau + 2, body)[0]
    third = len(sizes) // 3
    stable = sizes[2 * third :].max(0) <= sizes[third : 2 * third].max(0)
    last = int(np.flatnonzero(stable)[-1])
    assert stable[: last + 1].all() and not stable[last + 1 :].any(), "one border, not several"
    return rates[last], rates[last + 1]


@pytest.mark.parametrize("tau, figure", [(0, 2.0), (1, 1.0), (2, 0.618), (3, 0.445), (7, 0.209)])
def test_the_largest_stable_rate_is_that_of_the_theory(tau, figure):
    theory = 2 * math.sin(math.pi / (4 * tau + 2))
    assert theory == pytest.approx(figure, abs=5e-4)
    low, high = largest_stable_rate(tau)
    low, high = largest_stable_rate(tau, low - 0.01, high + 0.01)
    # within two steps of the second grid: right at the border growth takes more than 600 pushes
    assert low - 0.004 < theory < high + 0.004


def losses(rule, speeds, seconds, lr=0.2, batch=8):
    """[(modelled seconds, loss above the best one)] after each update: least squares with noise,
    worker i takes speeds[i] seconds for the gradient of a random batch."""
    g = minidl.Generator(5)
    x = g.normal(256, 8, dtype=np.float64)
    y = x @ g.normal(8, 1, dtype=np.float64) + g.normal(256, 1, dtype=np.float64)

    def loss(w):
        return float(((x @ w - y) ** 2).mean()) / 2

    least = loss(np.linalg.lstsq(x, y, rcond=None)[0])

    def body(t):
        w = Tensor(np.zeros((8, 1)), requires_grad=True)
        curve = []
        if t.rank == 0:
            server = Server(t, [w], 1, rule, lambda shard: optim.SGD(shard, lr=lr))
            step = server.update

            def update(values):
                step(values)
                curve.append((t.time(), loss(w.array) - least))

            server.update = update
            server.serve()
            return curve
        draw = minidl.Generator(t.rank)
        with Worker(t, [w]) as worker:
            while t.time() < seconds:
                worker.pull()
                t.compute(speeds[t.rank - 1])
                b = draw.integers(0, len(x), batch)
                w.grad = x[b].T @ (x[b] @ w.array - y[b]) / batch
                worker.push()

    return simulate(len(speeds) + 1, body)[0]


def time_to(curve, loss):
    return next(when for when, now in curve if now < loss)


def test_async_is_sooner_at_a_loss_with_a_straggler():
    """Seen: 6, 7 and 24 s to a loss of 0.5 above the best one."""
    sync, ssp, free = (losses(rule, [1.0, 1.0, 3.0], 60.0) for rule in (SYNC, bounded(3), ASYNC))
    assert 3 * time_to(free, 0.5) < time_to(sync, 0.5)
    assert time_to(free, 0.5) <= time_to(ssp, 0.5) < time_to(sync, 0.5)


def test_async_is_worse_update_for_update_with_equal_workers():
    """A fresh mean of three gradients against single ones that are two updates old."""
    sync, free = (losses(rule, [1.0, 1.0, 1.0], 60.0) for rule in (SYNC, ASYNC))
    pairs = [(a, b) for (_, a), (_, b) in zip(sync, free)]
    assert len(pairs) >= 60 and np.mean([a < b for a, b in pairs]) > 0.9
    assert np.median([b / a for a, b in pairs]) > 2
