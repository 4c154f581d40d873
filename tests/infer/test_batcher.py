"""Requests in batches: each gets its own answer or its own error, and the counters obey Little's
law."""

import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer import load
from tests.infer.models import array, same


class Gate:
    """A function of arrays that waits until it may go on, and remembers its batches."""

    def __init__(self):
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, x):
        self.entered.set()
        assert self.open.wait(30)
        self.batches.append(x[:, 0].astype(int).tolist())
        if (x < 0).any():
            raise ZeroDivisionError(f"of {len(x)}")
        return x * 2


def request(i):
    return np.array([float(i)])


def net(seed=0):
    minidl.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def plan(model, n):
    return infer.compile(infer.trace(model, array(n, 6)))


def test_every_request_gets_the_row_of_the_models_own():
    model, x = net(), array(23, 6, seed=1)
    with minidl.no_grad():
        want = model(minidl.tensor(x)).array
    with infer.Batcher([plan(model, n) for n in (4, 1, 8)], max_delay=0.01) as b:
        futures = [b.submit(row) for row in x]
        got = [f.result(30).array for f in futures]
    same(np.stack(got), want)
    report = b.report()
    assert (report.n_requests, report.n_failed) == (23, 0) and report.n_rows >= 23
    assert report.n_batches >= 3 and b.max_batch == 8, "never more than the largest plan holds"


def test_a_request_is_copied_when_it_is_submitted():
    gate = Gate()
    with infer.Batcher(gate, max_batch=4, max_delay=0) as b:
        first = b.submit(request(0))
        assert gate.entered.wait(30)
        x = request(1)
        future = b.submit(x)
        x[0] = 7
        gate.open.set()
        assert future.result(30) == 2 and first.result(30) == 0


def test_a_batch_begins_when_it_is_full_and_while_one_runs_the_next_collects():
    gate = Gate()
    with infer.Batcher(gate, max_batch=3, max_delay=60) as b:  # nobody waits for 60 s
        futures = [b.submit(request(i)) for i in range(3)]
        assert gate.entered.wait(30)
        futures += [b.submit(request(i)) for i in range(3, 11)]
        gate.open.set()
    assert [f.result(0) for f in futures] == [2 * i for i in range(11)]
    assert gate.batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]], "and closing drained it"


def test_the_oldest_request_waits_no_longer_than_max_delay():
    gate = Gate()
    gate.open.set()
    with infer.Batcher(gate, max_batch=1000, max_delay=0.05) as b:
        began = time.perf_counter()
        assert b.submit(request(3)).result(30) == 6
        assert time.perf_counter() - began >= 0.05, "another one could have come"


def test_errors_of_one_request_are_its_own():
    gate = Gate()
    with infer.Batcher(gate, max_batch=8, max_delay=60) as b:
        futures = [b.submit(request(i)) for i in (0, 1, -2, 3, -4, 5, 6, 7)]
        gate.open.set()
        for i, future in zip((0, 1, -2, 3, -4, 5, 6, 7), futures, strict=True):
            if i < 0:
                with pytest.raises(ZeroDivisionError, match="of 1"):
                    future.result(30)
            else:
                assert future.result(30) == 2 * i
    assert (b.report().n_requests, b.report().n_failed, b.report().n_rows) == (8, 2, 6)
    table = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)).eval()
    graph = infer.trace(table, np.array([[0, 1], [2, 3]]))
    with infer.Batcher(infer.compile(graph), max_delay=60) as b:
        good, bad = b.submit(np.array([1, 4])), b.submit(np.array([1, 5]))
        same(good.result(30).array, table(np.array([[1, 4]])).array[0])
        with pytest.raises(IndexError, match="rows 0 to 4"):
            bad.result(30)


def test_what_does_not_fit_is_refused_when_it_is_submitted():
    model = net()
    with infer.Batcher(plan(model, 4), max_delay=0) as b:
        for x in (array(5), array(1, 6), array(6).astype(np.float64)):
            with pytest.raises(TypeError, match=r"the plan wants float32\[6\]"):
                b.submit(x)
        b.submit(minidl.tensor(array(6))).result(30)
    with pytest.raises(RuntimeError, match="closed"):
        b.submit(array(6))
    b.close()
    with pytest.raises(ValueError, match="max_batch=5; want an integer from 1 to 4, the rows of"):
        infer.Batcher(plan(model, 4), max_batch=5)
    with pytest.raises(ValueError, match="max_delay"):
        infer.Batcher(abs, max_batch=2, max_delay=-1)
    with pytest.raises(ValueError, match="max_batch=None"):
        infer.Batcher(abs)
    with pytest.raises(TypeError, match="a list of Plans"):
        infer.Batcher([abs, abs], max_batch=2)
    with pytest.raises(ValueError, match="no common first dimension"):
        infer.Batcher(infer.compile(infer.trace(lambda x: x.sum(), minidl.tensor(array(4, 6)))))
    with pytest.raises(ValueError, match="different shapes"):
        infer.Batcher([plan(model, 1), infer.compile(infer.trace(abs, minidl.tensor(array(2, 5))))])


def test_too_many_that_wait_are_refused_and_a_cancelled_one_does_not_run():
    gate = Gate()
    with infer.Batcher(gate, max_batch=1, max_delay=0, max_waiting=2) as b:
        first = b.submit(request(0))
        assert gate.entered.wait(30)
        kept, gone = b.submit(request(1)), b.submit(request(2))
        with pytest.raises(RuntimeError, match="2 requests are waiting"):
            b.submit(request(3))
        assert gone.cancel() and not first.cancel()
        gate.open.set()
        assert kept.result(30) == 2
    assert gate.batches == [[0], [1]]
    with pytest.raises(CancelledError):
        gone.result(0)


def test_a_result_without_a_row_for_each_request_is_an_error():
    with infer.Batcher(lambda x: x.sum(0), max_batch=2, max_delay=60) as b:
        futures = [b.submit(array(3)), b.submit(array(3))]
        with pytest.raises(ValueError, match="want one row"):
            futures[0].result(30)


def test_the_counters_obey_littles_law_on_a_clock_of_our_own():
    """The integral of how many are inside is kept at each arrival and answer, the latencies are
    those of the requests: two ways to the same number, exact in steps of whole seconds."""
    now, gate = [100.0], Gate()  # a clock may begin anywhere

    def work(x):
        y = gate(x)
        now[0] += 3
        return y

    with infer.Batcher(work, max_batch=2, max_delay=0, clock=lambda: now[0]) as b:
        b.submit(request(0))
        assert gate.entered.wait(30)
        for i in range(1, 4):
            now[0] += 1
            b.submit(request(i))  # 1, 2, 3 s later
        gate.open.set()  # at 3 s: the first ends at 6, two at 9, the last at 12 s
    r = b.report()
    assert (r.n_batches, r.n_requests, r.elapsed_s) == (3, 4, 12.0)
    assert r.latency_s == r.inside_s == 6 + (9 - 1) + (9 - 2) + (12 - 3)
    assert r.inside == r.rate * r.latency == 2.5 and r.batch == 4 / 3


@pytest.mark.parametrize("max_batch, max_delay", [(1, 0.0), (4, 0.0), (4, 0.3), (32, 1.0)])
def test_littles_law_holds_on_a_simulated_clock(max_batch, max_delay):
    arrivals = load.poisson(2.0, 2000, seed=1)
    batches, ends = load.simulate(arrivals, lambda n: 0.2 + 0.05 * n, max_batch, max_delay)
    begins, frees, sizes = map(np.array, zip(*batches))
    assert sizes.sum() == 2000 and sizes.max() <= max_batch
    assert (begins[1:] >= frees[:-1]).all(), "one batch at a time"
    oldest = arrivals[np.cumsum(sizes) - sizes]
    latest = np.maximum(oldest + max_delay, np.concatenate([[0], frees[:-1]]))
    assert (begins <= latest).all() and (begins >= oldest).all() and (ends > arrivals).all()
    rate = 2000 / (ends[-1] - arrivals[0])
    latency = (ends - arrivals).mean()
    # an identity of the path: 2000 sums of float64, so 1e-9 is far above their rounding
    assert load.inside(arrivals, ends) == pytest.approx(rate * latency, rel=1e-9)


def test_a_batch_of_one_waits_as_long_as_an_m_d_1_queue():
    """Pollaczek and Khinchine: W = S + rho S / (2 (1 - rho)) for a fixed cost S."""
    arrivals = load.poisson(0.6, 100_000, seed=2)
    _, ends = load.simulate(arrivals, lambda n: 1.0, 1, 0.0)
    # rho = 0.6: 1 + 0.6 / 0.8; 100,000 arrivals, dependent over some tens: within 2 percent
    assert (ends - arrivals).mean() == pytest.approx(1.75, rel=0.02)


def test_arrivals_are_those_of_a_poisson_process():
    a = load.poisson(50.0, 20_000, seed=3)
    assert (load.poisson(50.0, 20_000, seed=3) == a).all() and (np.diff(a) > 0).all()
    gaps = np.diff(a)  # exponential: mean and deviation are 1 / rate, within 4 / sqrt(n)
    assert gaps.mean() * 50 == pytest.approx(1, abs=0.03)
    assert gaps.std() * 50 == pytest.approx(1, abs=0.03)


def test_an_offered_load_is_answered_and_measured():
    with infer.Batcher(lambda x: abs(x), max_batch=8, max_delay=1e-3) as b:
        latencies = load.offer(b, [request(-i) for i in range(40)], load.poisson(2000, 40))
    assert (latencies > 0).all() and b.report().n_requests == 40
    r = b.report()  # the two sides of Little's law, each summed in its own order
    assert r.inside == pytest.approx(r.rate * r.latency, rel=1e-6)
    with infer.Batcher(lambda x: 1 / 0, max_batch=8, max_delay=0) as b:
        assert np.isnan(load.offer(b, [request(1)] * 3, np.zeros(3))).all()
