"""Streams: an order for all that is needed, no event too many, and no bytes that two may touch.

On a GPU the plan is a CUDA graph; here tests/strict_cupy stands in for CuPy, runs what would be
captured, and raises Race where two streams touch the same bytes in no order."""

import gc
import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.cuda.cuda_graph import graphed
from minidl.infer import memory, streams
from minidl.nn import functional as F
from tests.conftest import n_drawn
from tests.infer.models import array, random_model, same

SEEDS = range(n_drawn(2, 20))


def needs(seed, n):
    """For each of n launches some before it: mostly late ones."""
    r = random.Random(seed)
    return [{max(0, i - 1 - int(r.expovariate(0.4))) for _ in range(r.randint(0, 3)) if i}
            for i in range(n)]


def graph_of(seed, n_ops=12):
    x = minidl.tensor(array(2, 3, 8, seed=seed))
    return infer.trace(random_model(seed, n_ops), x), x


@pytest.mark.parametrize("n_streams", [1, 2, 3, 4, 5, 8])
def test_all_that_a_launch_needs_is_over_and_no_event_is_too_many(n_streams):
    n_waits = 0
    for seed in range(n_drawn(8, 25)):
        wanted = needs(seed, 5 + seed)
        placed, waits = streams.assign(wanted, n_streams)

        def in_order(waits):
            over = streams.ordered(placed, waits)
            return all(over[i].get(placed[j], -1) >= j for i, js in enumerate(wanted) for j in js)

        assert in_order(waits), seed
        for i, js in enumerate(waits):
            for j in js:
                assert not in_order([[k for k in ks if (m, k) != (i, j)]
                                     for m, ks in enumerate(waits)]), (seed, i, j)
                n_waits += 1
    assert (n_waits == 0) == (n_streams == 1)


def test_two_branches_run_side_by_side():
    table = streams.Table(infer.trace(lambda x: x.exp().sin() + x.cos().tanh(),
                                      minidl.tensor(array(4))), 2)
    assert table.streams == [0, 0, 1, 1, 1] and table.waits == [[], [], [], [], [1]]
    assert str(table).splitlines()[4] == "stream 1   add_4   after sin_1"


@pytest.mark.parametrize("n_streams", [1, 2, 3, 5])
def test_random_graphs_have_no_race_and_each_missing_event_is_one(n_streams):
    for seed in SEEDS:
        table = streams.Table(graph_of(seed, 16)[0], n_streams)
        lines = table.lines()
        assert streams.races(lines) == [], seed
        assert table.memory.arena >= table.memory.bound
        for i, line in enumerate(lines[:-1]):
            for j in line.waits:
                less = [*lines[:i], line._replace(waits=[k for k in line.waits if k != j]),
                        *lines[i + 1:]]
                assert any("no event" in text for text in streams.races(less)), (seed, i, j)


def test_memory_for_one_stream_is_a_race_on_two():
    """The planner of memory.py alone shares bytes between values on unordered streams."""
    caught = 0
    for seed in SEEDS:
        graph, _ = graph_of(seed, 16)
        one, two = streams.Table(graph, 1), streams.Table(graph, 3)
        assert one.memory.arena <= two.memory.arena
        two.at = dict(zip(two.at, [one.at.get(v, 0) for v in one.at]))
        caught += bool(streams.races(two.lines()))
    assert 2 * caught >= len(SEEDS)


def test_bytes_that_are_written_too_early_are_found_in_one_stream():
    lines = [streams.Line("a", 0, [], [(0, 0, 64, True)]),
             streams.Line("b", 0, [], [(1, 32, 96, True)]),
             streams.Line("c", 0, [], [(0, 0, 64, False)])]
    text, = streams.races(lines)
    assert text == ("b (stream 0, value 1) and c (stream 0, value 0) share bytes [32, 64): b "
                    "overwrites what c reads")
    lines[1] = lines[1]._replace(touches=[(1, 64, 96, True)])
    assert streams.races(lines) == []


def test_more_streams_than_meet_is_what_the_check_refuses():
    values = [memory.Lifetime(64, 0, 0), memory.Lifetime(64, 1, 1)]
    assert memory.plan(values).arena == 64
    assert memory.plan(values, lambda a, b: True).arena == 128


# ---- on the stand-in for CuPy ----


@pytest.fixture
def captured(strict_cupy, monkeypatch):
    """The stand-in with what CuPy has for CUDA graphs: a launch runs the step again. As CUDA does,
    end_capture refuses a stream that has begun and that the first does not wait for."""
    cupy, log = strict_cupy, []
    from cupy import _streams

    class Graph:
        def __init__(self, step):
            self.step = step

        def launch(self, stream):
            with stream:
                self.step()

    def queues():
        return [q for q in _streams._queues[0] if not q.null]

    def begin(stream):
        log.append({q.id: q.n for q in queues()})

    def end(stream):
        before, clock = log.pop(), stream._queue.clock
        for q in queues():
            if q.n > before.get(q.id, 0) and q is not stream._queue:
                assert clock.get(q.id, 0) >= q.n, f"cudaErrorStreamCaptureUnjoined: {q.name}"
        return Graph(log.pop())

    monkeypatch.setattr(cupy.cuda.Stream, "begin_capture", begin, raising=False)
    monkeypatch.setattr(cupy.cuda.Stream, "end_capture", end, raising=False)
    monkeypatch.setattr(cupy.cuda, "MemoryPool", lambda: SimpleNamespace(malloc=None),
                        raising=False)
    monkeypatch.setattr(cupy.cuda, "using_allocator", lambda malloc: nullcontext(),
                        raising=False)
    monkeypatch.setattr(streams, "graphed", lambda step: log.append(step) or graphed(step, 1))
    yield cupy
    gc.collect()
    cupy.cuda.Device(0).synchronize()  # what is under way here is not the next test's


@pytest.mark.parametrize("n_streams", [1, 3])
def test_a_replay_on_streams_is_the_graph(captured, n_streams):
    for seed in SEEDS[n_streams % 2:]:
        graph, x = graph_of(seed)
        plan = infer.streamed(graph, n_streams)
        for _ in range(2):
            with captured.stand_in.counting() as count:
                y = plan(captured.asarray(x.array))
            assert not count.waits
            # A race gives another number. A layer norm of nearly equal numbers makes one rounding
            # of exp a hundred times larger, and the kernel's exp is not NumPy's.
            # In 200 graphs the largest difference was 1.2e-5.
            same(y.array.get(), graph.run(x.array), tolerance=5e-5)
            x = x * -0.5


def test_a_gpt_on_two_streams(captured):
    minidl.manual_seed(0)
    ids = np.random.default_rng(0).integers(0, 11, (2, 8))
    graph = infer.trace(nn.GPT(11, 16, 1, 2, 8).eval(), ids)
    same(infer.streamed(graph)(captured.asarray(ids)).array.get(), graph.run(ids))


def test_only_indices_of_the_user_leave_a_note(captured):
    """Before there are any, a plan runs on what it wrote over its input: they share bytes."""
    ids = np.random.default_rng(0).integers(0, 11, (2, 8))
    net = nn.GPT(11, 16, 1, 2, 8, generator=minidl.random.Generator(0)).eval()
    graph = infer.trace(net, ids)
    plan = infer.streamed(graph)
    same(plan(captured.asarray(ids)).cpu().array, graph.run(ids))
    with pytest.raises(IndexError, match="embedding: wanted indices from 0 to 10; got 40"):
        plan(captured.asarray(ids * 0 + 40)).tolist()
    w = minidl.Tensor(captured.asarray(array(11, 8)))
    F.embedding(minidl.Tensor(captured.asarray([12])), w)
    infer.streamed(graph)
    with pytest.raises(IndexError, match="embedding: wanted indices from 0 to 10; got 12"):
        w.tolist()  # a note of before stays


def test_without_its_events_the_stand_in_sees_a_race(captured, monkeypatch):
    graph, _ = graph_of(1)
    assign = streams.assign

    def careless(needs, n_streams):
        placed, waits = assign(needs, n_streams)
        assert any(waits)
        return placed, [[] for _ in waits]

    monkeypatch.setattr(streams, "assign", careless)
    with pytest.raises(RuntimeError, match="no event puts one line before the other"):
        infer.streamed(graph, 3)  # our own check
    monkeypatch.setattr(streams, "races", lambda lines: [])
    with pytest.raises(captured.stand_in.Race, match="no event and no wait"):
        infer.streamed(graph, 3)


def test_what_is_refused(captured):
    x = minidl.tensor(array(2, 3, 8, 8))
    net = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
    graph = infer.trace(net, x)
    plan = infer.streamed(graph)
    with pytest.raises(TypeError, match=r"want float32\[2, 3, 8, 8\] on the GPU, got ndarray"):
        plan(x)
    with minidl.no_grad():
        net[0].weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="has changed since the model was traced"):
        plan(captured.asarray(x.array))
    infer.optimise(graph)
    with pytest.raises(ValueError, match="the pass `layout` makes such"):
        infer.streamed(graph)
