"""Ranks that disagree are told so before a payload moves; ranks that agree notice nothing."""

import collections
import gc
import re
import threading
import time

import numpy as np
import pytest

from minidl.comm import objects, ring, scatter_gather, simulate, tree
from minidl.comm.call_code import CallMismatch
from minidl.comm.collective import collective
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.signature import digest_of, explain, signature_of
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.background import Background
from minidl.comm.transport.scheduler import Deadlock, RankFailed
from minidl.text import in_words
from tests.conftest import ranks

# -- ranks that agree


@ranks(1, 2, 3, 4, 5, 8)
def test_results_are_the_same_bits_and_nothing_enters_a_ledger(t):
    outside, inside = Ledger(Watch(t)), Ledger(t)
    watched, plain = Watch(inside), Ledger(t.subgroup(range(t.size)))
    for n in (0, 1, t.size - 1, t.size, t.size + 1, 13):
        x = np.random.default_rng([t.rank, n]).standard_normal(n)
        want = ring.all_reduce(plain, x.copy())
        last = t.size - 1
        tree.broadcast(plain, np.zeros(n), root=last)
        for other in (outside, watched):
            assert (ring.all_reduce(other, x.copy()) == want).all()
            assert (tree.broadcast(other, np.full(n, t.rank), root=last) == last).all()
    for counted in (outside, inside):
        assert counted.bytes_sent == plain.bytes_sent
        assert counted.messages_sent == plain.messages_sent
        assert counted.messages_received == plain.messages_received


@ranks(2, 3, 4, 5, 7, 8)
def test_all_ranks_know_whether_one_of_them_differs(t):
    # The rounds of messages under MPI; simulated ranks compare on a board instead.
    watch = Watch(t)
    assert watch._agree(5) is True
    for other in range(t.size):
        for digest in (0, 9):  # below the others' and above
            assert watch._agree(digest if t.rank == other else 5) is False


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_modelled_clock_does_not_see_the_watch(n):
    def seconds(t, wrap):
        t = wrap(t)
        ring.all_reduce(t, np.ones(1000))
        tree.barrier(t.subgroup(range(t.size)))
        return t.time()

    assert simulate(n, seconds, Watch) == simulate(n, seconds, lambda t: t)


@ranks(1, 2, 3, 4)
def test_all_that_a_transport_offers_works_through_a_watch(t):
    t = Watch(t)
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    into = np.zeros(3)
    requests = [t.irecv(into, left, 1), t.isend(np.full(3, t.rank), right, 1)]
    for request in requests:
        request.wait()
    assert (t.sendrecv(np.full(3, 10.0 + t.rank), right, into, left) == 10 + left).all()
    t.isend(into, right, 2)
    src, data = t.recv_any(2)
    assert src == left and len(data) == 24
    if t.size > 1 and t.rank < 2:
        other = 1 - t.rank
        (t.send if t.rank else lambda *a: t.recv(into, other, 3))(into, other, 3)
        group = t.subgroup([1, 0])
        assert isinstance(group, Watch) and group.rank == 1 - t.rank
        assert (ring.all_reduce(group, np.ones(2)) == 2).all()
    elif t.size > 2:
        assert t.subgroup([1, 0]) is None
    with Background(t) as background:
        jobs = [background.submit(ring.all_reduce, np.full(5, i)) for i in range(3)]
        assert [job.wait()[0] for job in jobs] == [0, t.size, 2 * t.size]
    assert t.spawn(lambda: t.rank).wait() == t.rank


@ranks(1, 2, 3)
def test_a_peer_that_is_not_there_is_named_as_without_a_watch(t):
    x, n = np.zeros(1), t.size
    t = Watch(t)
    for call, what in ((lambda: t.isend(x, n), "dst"), (lambda: t.send(x, -1), "dst"),
                       (lambda: t.irecv(x, n), "src"), (lambda: t.recv(x, -1), "src"),
                       (lambda: t.sendrecv(x, n, x, 0), "dst")):
        with pytest.raises(ValueError, match=rf"rank {t.rank}: {what} must be a rank of this gr"):
            call()


def threads_of_watches():
    return {thread for thread in threading.enumerate() if thread.name in (
        "minidl answers", "minidl looks")}


@ranks(1, 2, 3)
def test_the_threads_of_a_watch_end_when_nobody_holds_it(t):
    before = threads_of_watches()
    watch = Watch(t)
    watch.in_background(ring.all_reduce, np.ones(3)).wait()
    group = watch.subgroup(range(t.size))
    mine = threads_of_watches() - before
    assert len(mine) == (0 if t.simulated or t.size == 1 else 2)
    del watch
    gc.collect()
    ring.all_reduce(group, np.ones(3))  # the group's watch goes on
    time.sleep(0 if t.simulated else 1.2)
    assert all(thread.is_alive() for thread in mine)
    del group
    gc.collect()
    tree.barrier(t)
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()


@ranks(2, 3)
def test_a_name_stands_for_the_line(t):
    t = Watch(t)
    with t.named("weights"):
        if t.rank == 0:
            tree.broadcast(t, np.ones(3))
        else:
            tree.broadcast(t, np.ones(3))


@ranks(2, 3)
def test_arguments_may_differ_where_the_collective_says_so(t):
    t = Watch(t)
    out = np.zeros(t.rank)
    bounds = [r * (r - 1) // 2 for r in range(t.size + 1)]
    x = np.arange(float(bounds[-1])) if t.rank == 0 else None
    scatter_gather.scatter(t, x, out, 0, bounds)
    assert (out == np.arange(bounds[t.rank], bounds[t.rank + 1])).all()


@ranks(2, 3)
def test_an_argument_left_out_is_its_default(t):
    t = Watch(t)
    x, more = np.ones(2), {"op": np.add, "root": 0} if t.rank else {}
    total = tree.reduce(t, x, **more)
    assert total is None if t.rank else (total == t.size).all()


# -- ranks that do not; under real MPI in tests/mpi/test_watch_mpi.py

MISMATCHES = {
    "shape": (lambda t: ring.all_reduce(t, np.ones(10 + t.rank)),
              "Is the last batch shorter on some rank?"),
    "dtype": (lambda t: ring.all_reduce(t, np.ones(8, f"f{8 >> t.rank}")), "Cast to the same"),
    "collective": (lambda t: [ring.all_reduce, tree.broadcast][t.rank](t, np.ones(4)), "an `if`"),
    "op": (lambda t: ring.all_reduce(t, np.ones(4), [np.add, np.maximum][t.rank]), "the same op"),
    "root": (lambda t: tree.broadcast(t, np.ones(4), root=t.rank), "the same root on all"),
    "algorithm": (lambda t: [ring, tree][t.rank].all_reduce(t, np.ones(4)), "an `if`"),
}


def swapped_order(t):
    a, b = np.ones(4), np.zeros(4)
    if t.rank:
        ring.all_reduce(t, b)
        ring.all_reduce(t, a)
    else:
        ring.all_reduce(t, a)
        ring.all_reduce(t, b)


def swapped_names(t):
    for name in ("weights", "bias")[:: 1 - 2 * t.rank]:
        with t.named(name):
            ring.all_reduce(t, np.ones(4))


def swapped_jobs(t):
    with Background(t) as background:
        if t.rank:
            jobs = [background.submit(ring.all_reduce, np.zeros(4))]
            jobs += [background.submit(ring.all_reduce, np.ones(4))]
        else:
            jobs = [background.submit(ring.all_reduce, np.ones(4))]
            jobs += [background.submit(ring.all_reduce, np.zeros(4))]
        for job in jobs:
            job.wait()


MISMATCHES |= {
    "swapped order": (swapped_order, "t.named("),
    "swapped names": (swapped_names, "name is weights on rank 0, bias on rank 1. Do the ranks"),
    "swapped jobs": (swapped_jobs, "in another order?"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_names_both_ranks_both_lines_and_what_differs(case):
    wrong, words = MISMATCHES[case]
    moved = collections.Counter()

    def body(t):
        ledger = Ledger(t)
        t = Watch(ledger)
        tree.barrier(t)
        ledger.reset()
        try:
            wrong(t)
        finally:
            moved[t.rank] = ledger.bytes_received

    with pytest.raises(RankFailed) as caught:
        simulate(2, body)
    assert isinstance(caught.value.__cause__, CallMismatch)
    text = str(caught.value.__cause__)
    assert words in text, text
    number = 1 if case == "swapped jobs" else 2  # a Background's group is its own
    assert f"the ranks disagree on collective {number} of ranks 0, 1" in text
    for rank in (0, 1):
        said = rf"^  rank {rank}: \w+\.\w+\(x float\d+ \(\d+,\).*, at .*test_watch.py:\d+$"
        assert re.search(said, text, re.M), text
    assert re.search(r"differs: .* on rank 0, .* on rank 1", text)
    assert not any(moved.values()), "no payload has reached anybody"


def test_a_mismatch_is_the_same_text_every_time():
    def text():
        with pytest.raises(RankFailed) as caught:
            simulate(5, lambda t: ring.all_reduce(Watch(t), np.ones(10 + (t.rank == 3))))
        return str(caught.value)

    assert text() == text()


def test_ranks_in_words():
    words = {(2,): "rank 2", (0, 1): "ranks 0, 1", (1, 2, 3): "ranks 1-3", (0, 2): "ranks 0, 2"}
    assert {ranks: in_words(ranks) for ranks in words} == words


def test_ranks_of_one_opinion_share_a_line():
    calls = {}
    for rank in range(4):
        seen = (np.dtype("f4"), (7 + (rank == 2),)), "add"
        signature = signature_of(ring.all_reduce.__wrapped__, "ring.all_reduce", ("a.py", 3), *seen)
        calls[rank] = (digest_of(repr(signature["compared"])), signature)
    assert explain(calls).splitlines() == [
        "  ranks 0, 1, 3: ring.all_reduce(x float32 (7,), op add), at a.py:3",
        "  rank 2: ring.all_reduce(x float32 (8,), op add), at a.py:3",
        "  differs: x is float32 (7,) on rank 0, float32 (8,) on rank 2. Is the last "
        "batch shorter on some rank?",
    ]


def test_the_same_file_in_another_folder_is_the_same_line():
    def compared(path, line):
        call = ring.all_reduce.__wrapped__, "ring.all_reduce", (path, line)
        return signature_of(*call, (np.dtype("f4"), (7,)), "add")["compared"]

    assert compared("/home/a/train.py", 3) == compared("/mnt/a/train.py", 3)
    assert compared("/home/a/train.py", 3) != compared("/home/a/train.py", 4)


def test_a_rank_that_does_not_come_is_named_in_the_simulator():
    def body(t):
        t = Watch(t)
        if t.rank != 1:
            ring.all_reduce(t, np.ones(4))

    with pytest.raises(Deadlock, match="rank 1 \\(which has ended\\).*in ring.all_reduce"):
        simulate(3, body)


def test_a_cycle_is_printed_in_the_simulator():
    def body(t):
        x = np.ones(100)
        t.send(x, (t.rank + 1) % t.size)
        t.recv(x, (t.rank - 1) % t.size)

    with pytest.raises(Deadlock, match="wait-for cycle: rank 0 -> rank 1 -> rank 2 -> rank 0$"):
        simulate(3, body, rendezvous_bytes=10)


def test_own_rows_still_compare_dtype_and_the_other_axes():
    @collective(own_rows=("x",))
    def ragged(t, x):
        tree.barrier(t)

    simulate(2, lambda t: ragged(Watch(t), np.ones((t.rank, 3))))
    for wrong in (lambda r: np.ones((2, 3 + r)), lambda r: np.ones((2, 3), f"f{8 >> r}")):
        with pytest.raises(RankFailed, match=r"x is float64 \(any, 3\) on rank 0"):
            simulate(2, lambda t, wrong=wrong: ragged(Watch(t), wrong(t.rank)))


@ranks(1, 2, 3, mpi=False)
def test_each_group_counts_under_a_name_of_its_own_the_same_on_all_ranks(t):
    # else what a rank sent in one duplicate would look like what it owes in the other
    watched = Watch(t)
    everybody = range(t.size)
    groups = [watched, watched.subgroup(everybody), watched.subgroup(everybody)]
    names = [group._name for group in [*groups, groups[1].subgroup(everybody)]]
    assert len(set(names)) == 4
    assert objects.all_gather(t, names) == [names] * t.size
