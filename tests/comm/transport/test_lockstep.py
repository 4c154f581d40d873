"""Ranks in one array: nobody can tell, but by the clock on the wall."""

import re
import time

import numpy as np
import pytest

from minidl.comm import halving_doubling, hierarchical, ring, ring_blocks, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport import lockstep, scheduler
from minidl.comm.transport.links import Links
from minidl.comm.transport.protocol import Wrapper

ONE_BY_ONE = 10**9


@pytest.fixture
def count(monkeypatch):
    """How many loops were run once for all ranks: a list with an entry for each."""
    done, finish = [], lockstep._AllRanks.finish

    def counted(self, here):
        done.append(self.size)
        finish(self, here)

    monkeypatch.setattr(lockstep._AllRanks, "finish", counted)
    return done


def both_ways(n, body, **options):
    """What the ranks return, equal one by one and in step."""
    one_by_one = simulate(n, body, in_step=ONE_BY_ONE, **options)
    in_step = simulate(n, body, in_step=1, **options)
    assert repr(one_by_one) == repr(in_step)  # every bit: repr of a float has them all
    return in_step


def data(t, n_elems, dtype="f4"):
    return (np.random.default_rng([t.rank, n_elems]).standard_normal(n_elems) * 1.5).astype(dtype)


def calls(t, n_elems):
    """Several collectives, one after the other, on ranks that begin at different times."""
    t.compute(1e-5 * (t.rank * 7 % 5))
    for dtype, op in (("f4", np.add), ("f2", np.multiply), ("i8", np.maximum), ("f8", np.add),
                      ("?", np.logical_or), ("f4", np.logical_or)):
        yield ring.all_reduce(t, data(t, n_elems, dtype), op), t.time()
    yield ring_blocks.all_reduce(t, data(t, n_elems)), t.time()
    yield ring_blocks.all_gather_v(t, data(t, t.rank % 3))[0], t.time()
    groups = hierarchical.groups(t, 2)
    yield hierarchical.all_reduce(t, data(t, n_elems), groups=groups), t.time()
    t.compute(3e-5 * (t.rank % 2))
    # another pattern on the same ports, then the ring again
    yield halving_doubling.all_reduce(t, data(t, n_elems)), t.time()
    yield ring.all_reduce(t, data(t, n_elems)), t.time()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_results_clocks_and_ledgers_are_equal_to_the_bit(n, count):
    def body(t):
        t = Ledger(t)
        seen = [(x.tobytes(), x.dtype, at)
                for n_elems in sorted({0, 1, n - 1, n, n + 1, 5 * n + 2, 40 * n})
                for x, at in calls(t, n_elems)]
        return seen, t.report()

    both_ways(n, body)
    assert count or n == 1


LINKS = {"pairs": Links.uniform(1e-5, 1e-9, pairs={(0, 1): (1e-3, 5e-9), (4, 2): (0, 0)}),
         "straggler": Links.uniform(1e-5, 1e-9, straggler={2: 9.0}),
         "a NIC for each rank": Links.nodes(2, (1e-6, 1e-10), (5e-5, 8e-9), nic="rank"),
         "a slow port": Links.uniform(0.0, 1e-6, pairs={(1, 2): (0.0, 1e-3)})}


@pytest.mark.parametrize("links", LINKS)
def test_on_any_network_whose_ports_are_a_ranks_own(links, count):
    both_ways(5, lambda t: [(x.tobytes(), at) for x, at in calls(t, 23)], links=LINKS[links])
    assert count


def test_on_busy_ports(count):
    """A port that a message from another rank keeps busy, and one that it was busy after."""
    def body(t):
        other = (t.rank + 2) % t.size
        late = np.zeros(1000 * (t.rank + 1), "u1")
        request = t.isend(late, other, 7)
        x = ring.all_reduce(t, data(t, 50))
        t.recv(np.zeros(1000 * ((t.rank - 2) % t.size + 1), "u1"), (t.rank - 2) % t.size, 7)
        request.wait()
        ring.all_reduce(t, x)
        return x.tobytes(), t.time()

    both_ways(5, body, alpha=1e-6, beta=1e-7)
    assert len(count) == 4  # two calls, of two loops


def test_a_message_from_before_the_ports_last_busy_period_does_not_queue(count):
    def body(t):
        if t.rank == 0:
            t.compute(1.0)
            t.send(np.zeros(10_000, "u1"), 2, 7)
        if t.rank == 2:
            t.recv(np.zeros(10_000, "u1"), 0, 7)
        ring_blocks.all_gather(t, np.zeros(40), [0, 1, 38, 39, 40])  # rank 1's block is long
        return t.time()

    both_ways(4, body, beta=1e-6)
    assert count


def test_a_thousand_ranks_take_a_second(count):
    def body(t):
        x = np.full(1024, t.rank, np.float32)
        ring.all_reduce(t, x)
        return x[[0, 1, -1]].tolist(), t.time()

    start = time.process_time()
    (result, at), *others = simulate(1024, body)
    assert time.process_time() - start < 3, "6 s one by one"
    assert result == [1024 * 1023 / 2] * 3 and len(count) == 2
    assert all(other == (result, at) for other in others)


# -- where it could be seen, each rank does it by itself


def one_by_one(n, body, count, **options):
    both_ways(n, body, **options)
    assert not count


def test_a_function_that_is_not_numpys_sees_single_chunks(count):
    def add(a, b, out):
        assert a.ndim == 1
        return np.add(a, b, out=out)

    both_ways(4, lambda t: ring.all_reduce(t, data(t, 10), add).tobytes())
    assert len(count) == 1, "the gather, which has no function"


def test_ranks_with_one_memory_for_all_of_them(count):
    def simulated(in_step):
        x = np.arange(8.0)
        simulate(4, lambda t: ring.all_reduce(t, x), in_step=in_step)
        return x.tobytes()

    assert simulated(1) == simulated(ONE_BY_ONE) and not count


def test_shared_ports_and_large_messages(count):
    def body(t):
        return ring.all_reduce(t, data(t, 100)).tobytes(), t.time()

    one_by_one(4, body, count, links=Links.nodes(2, (1e-6, 1e-10), (5e-5, 8e-9)))
    one_by_one(4, body, count, rendezvous_bytes=10)


def test_a_task_of_one_of_the_ranks(count):
    def send_later(t):
        t.compute(5e-5)  # between the ring's messages of this rank
        t.send(np.zeros(5000), 0, 9)

    def body(t):
        job = None
        if t.rank == 3:  # the others wait at the loop by now
            job = t.spawn(send_later, t)
        x = ring.all_reduce(t, data(t, 100))
        if t.rank == 0:
            t.recv(np.zeros(5000), 3, 9)
        if job:
            job.wait()
        return x.tobytes(), t.time()

    both_ways(4, body)
    assert not count


def test_a_wrapper_that_wants_to_see_every_message(count):
    class Counts(Wrapper):
        n = 0

        def sendrecv(self, *args):
            self.n += 1
            return super().sendrecv(*args)

    def body(t):
        t = Counts(t)
        ring.all_reduce(t, data(t, 100))
        return t.n

    assert both_ways(4, body) == [6] * 4 and not count


def test_a_watch_compares_calls_and_is_in_step(count):
    assert both_ways(4, lambda t: ring.all_reduce(Watch(t), data(t, 9)).tobytes()) and count


def error_of(n, body, kind, in_step):
    with pytest.raises(kind) as caught:
        simulate(n, body, in_step=in_step)
    return re.sub(r"\.py:\d+", ".py", str(caught.value))


@pytest.mark.parametrize("case", ["a rank is missing", "another collective", "a message before",
                                  "sizes differ", "a rank fails"])
def test_errors_and_deadlocks_have_the_same_words(case, count):
    def body(t):
        if case == "a rank is missing" and t.rank == 2:
            return
        if case == "another collective" and t.rank == 2:
            t.recv(np.zeros(3), 0, 5)
        if case == "a message before" and t.rank == 2:
            t.send(np.zeros(5, "u1"), 3)
        if case == "a rank fails" and t.rank == 2:
            raise SizeMismatch("planted")
        n_elems = 13 if case == "sizes differ" and t.rank == 2 else 12
        ring_blocks.reduce_scatter(t, np.zeros(n_elems), [0, 3, 6, 9, n_elems])

    deadlock = case in ("a rank is missing", "another collective")
    kind = scheduler.Deadlock if deadlock else scheduler.RankFailed
    assert error_of(4, body, kind, 1) == error_of(4, body, kind, ONE_BY_ONE)
    assert not count
