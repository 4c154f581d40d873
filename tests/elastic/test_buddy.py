"""Copies in memory and on buddies: what a death leaves is the state that a snapshot would hold.

Oracle: a snapshot of the same run at the same step, loaded on as many ranks as are left; every bit
of weights, buffers, moments and random numbers, seen in the weights two steps later (dropout).
"""

import itertools
import math
import tempfile

import numpy as np
import pytest

from minidl import nn, snapshot
from minidl.comm import simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.protocol import Wrapper
from minidl.comm.transport.scheduler import Deadlock
from minidl.elastic import buddy
from minidl.parallel import DGC, Compressed
from tests.conftest import each_once, some
from tests.elastic.bodies import STAGES, state_of, train, weights

STEPS, MORE = 3, 2  # steps until the death, and after it


def run(t, stage, until, copied=None, named=None, first=0):
    """Train from step `first`; with `copied`, a dict, leave this rank's Buddies there."""
    named = named or (stage if callable(stage) else state_of(stage))(t)
    if copied is not None:
        copied[t.rank] = buddy.Buddies(t, named)
    for step in range(first, until):
        if copied is not None:
            copied[t.rank].save(step)
        train(t, step, **named)
    return named


def trained(n, stage):
    """{rank: its Buddies} after STEPS steps."""
    copied = {}
    simulate(n, lambda t: run(t, stage, STEPS, copied) and copied[t.rank].settle())
    return copied


def oracle(stage, n, step, m, folder):
    """Weights of m ranks, MORE steps after a snapshot that n ranks had made at `step`."""
    folder = f"{folder}/{stage}-{n}-{step}"

    def save(t):
        snapshot.save(folder, step, t, **run(t, stage, step))

    def load(t):
        named = state_of(stage)(t)
        assert snapshot.load(folder, t, **named) == step
        return weights(run(t, stage, step + MORE, named=named, first=step))

    if snapshot.latest(folder) is None:
        simulate(n, save)
    return simulate(m, load)


def healed(stage, copied, order):
    """(the step that was chosen, weights of the ranks MORE steps later). order: for each new rank
    its old one; None: a newcomer."""
    reports = [[] if old is None else [copied[old].report()] for old in order]
    chosen = buddy.choose(reports)
    if chosen is None:
        return None, None
    for old in order:
        if old is not None:
            copied[old].let_go(chosen[1])

    def body(t):
        named = (stage if callable(stage) else state_of(stage))(t)
        old = order[t.rank]
        mine = None if old is None else copied[old]
        buddy.restore(t, mine, reports, chosen, named)
        return weights(run(t, stage, chosen[1] + MORE, named=named, first=chosen[1]))

    return chosen[1], simulate(len(order), body)


@pytest.mark.parametrize("stage, sizes", each_once(STAGES, [(2, 5), (3,), (4,), (2, 8)]))
def test_after_a_death_the_others_have_what_a_snapshot_would_give(stage, sizes):
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            copied, lost = trained(n, stage), n // 2
            shrunk = [old for old in range(n) if old != lost]
            orders = [shrunk, [None if old == lost else old for old in range(n)]]
            for order in orders if n < 5 else orders[:1]:
                step, after = healed(stage, copied, order)
                assert step == STEPS - 1  # the one that was interrupted
                assert after == oracle(stage, n, step, len(order), folder), (n, order)


@pytest.mark.gpu
@pytest.mark.parametrize("stage", STAGES)
def test_on_a_gpu_likewise(stage, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.on_device.DEVICE", "cuda")
    for order in ([0, 2], [0, None, 2]):
        step, after = healed(stage, trained(3, stage), order)
        assert step == STEPS - 1 and after == oracle(stage, 3, step, len(order), tmp_path)


class Killed(Exception):
    """Instead of SIGKILL."""


class Mortal(Wrapper):
    """A transport whose rank dies when it begins its so-and-so-many-th message, in any group."""

    def __init__(self, inner, fuse):
        super().__init__(inner)
        self.fuse = fuse

    def _burn(self):
        self.fuse[0] -= 1
        if self.fuse[0] < 0:
            if self.fuse[1]:  # stands still: the others go on until they wait for it
                self.inner.recv(np.empty(1, np.uint8), (self.rank + 1) % self.size, tag=99)
            raise Killed

    def isend(self, *args, **options):
        self._burn()
        return self.inner.isend(*args, **options)

    def send(self, *args, **options):
        self._burn()
        return self.inner.send(*args, **options)

    def sendrecv(self, *args, **options):
        self._burn()
        return self.inner.sendrecv(*args, **options)

    def around(self, inner):
        return Mortal(inner, self.fuse)


def killed(n, stage, lost, messages, go_on):
    """({rank: its Buddies}, the newest step that a rank had begun) of a run whose rank `lost` dies
    after so many messages in step 1 or later; (None, None) if it has fewer. go_on: whether the
    others go on until they wait for it, or stop where they are."""
    copied, fuse, began = {}, [10**9, go_on], []

    def body(t):
        t = Mortal(t, fuse) if t.rank == lost else t
        named = state_of(stage)(t)
        copied[t.rank] = buddy.Buddies(t, named)
        for step in range(3):
            if step == 1 and t.rank == lost:
                fuse[0] = messages
            copied[t.rank].save(step)
            began.append(step)
            if step < 2:
                train(t, step, **named)
        copied[t.rank].settle()

    try:
        simulate(n, body)
    except Exception as error:
        assert isinstance(error if go_on else error.__cause__, Deadlock if go_on else Killed), error
        return copied, max(began)
    return None, None


@pytest.mark.parametrize("go_on", [False, True])
@pytest.mark.parametrize("stage", ["dp", "zero2"])
def test_a_death_at_any_message_leaves_the_step_or_the_one_before(stage, go_on):
    """On 4 ranks; the others stop at other places of the protocol each time: the rank that dies is
    the one that passes an agreement on to another (tree.py), so some are in the next step when some
    are not."""
    n, lost, seen = 4, 2, set()
    with tempfile.TemporaryDirectory() as folder:
        for messages in itertools.count():
            copied, newest = killed(n, stage, lost, messages, go_on)
            if copied is None:
                break  # it has fewer messages than that
            step, after = healed(stage, copied, [0, 1, 3])
            # where all had come to the next step's beginning, and nothing need travel, that one
            allowed = (newest, newest + 1) if stage == "dp" else (newest - 1, newest)
            assert step in allowed, (messages, step)
            if (step, newest) not in seen:
                seen.add((step, newest))
                assert after == oracle(stage, n, step, 3, folder), messages
    assert messages > 20 and len(seen) >= (2 if stage == "dp" else 3)


def test_where_all_hold_the_same_one_survivor_is_enough():
    copied = trained(4, "dp")
    step, after = healed("dp", copied, [3])
    assert step == STEPS - 1
    # 3's numbers are those of the only new rank, and 2's, which it has, those of nobody
    with tempfile.TemporaryDirectory() as folder:
        plain = oracle("dp", 4, step, 1, folder)
    assert after[0].keys() == plain[0].keys()


@pytest.mark.parametrize("lost, possible", [({1, 2}, False), ({3, 0}, False), ({0, 2}, True),
                                            ({1, 3}, True), ({0, 1, 2}, False)])
def test_a_shard_is_lost_with_its_rank_and_its_buddy_only(lost, possible):
    copied = trained(4, "zero1")
    reports = [[copied[r].report()] for r in range(4) if r not in lost]
    assert (buddy.choose(reports) is not None) == possible


def test_of_two_generations_the_newest_whole_one_is_chosen():
    def report(generation, rank, size, mine, theirs):
        return buddy.Report(generation, rank, size, True, mine, theirs)

    old = [report(0, r, 4, [6, 7], [6, 7]) for r in range(4)]
    new = [report(1, r, 3, [7], theirs) for r, theirs in enumerate(([7], [7], []))]
    # old rank 3 died; then, of the survivors 0, 1, 2, rank 2, whose shard rank 0 has in both
    assert buddy.choose([[old[0], new[0]], [old[1], new[1]]]) == (1, 7)
    # rank 1 instead: its copy had not come to rank 2 in the new generation, but in the old one
    assert buddy.choose([[old[0], new[0]], [old[2], new[2]]]) == (0, 7)
    # nobody has all of the newest step: the one before
    late = report(0, 2, 4, [6, 7], [6])
    assert buddy.choose([[old[0]], [late], [old[3]]]) == (0, 6)
    assert buddy.choose([[], []]) is None


@pytest.mark.parametrize("alive, why", [
    ([], "No rank had kept a state yet"), ([0, 3], "A rank and its buddy died together"),
    ([1, 2], "A rank and its buddy died together"), ([0, 2], "no step in common"),
    ([0, 1, 2], "no step in common")])
def test_a_pair_is_blamed_only_if_it_died(alive, why):
    """Red before: it was blamed also where nobody had kept anything yet."""
    reports = [[buddy.Report(0, rank, 4, True, [rank], [])] for rank in alive] or [[], [], []]
    assert buddy.choose(reports) is None
    assert why in buddy.why_nothing(reports)


@pytest.mark.parametrize("stage", STAGES)
def test_bytes_held_and_sent_are_the_formula(stage):
    """S = 12 bytes for each element of the rank's blocks (float32 weights, m, v): 2 S of its own,
    2 S of its left neighbour; what all have alike is 12 bytes a parameter, once, and not sent."""
    for n in (1, 2, 3, 5):
        copied, sizes = {}, {}

        def body(t):
            t = Ledger(t)
            named = state_of(stage)(t)
            if stage == "dp":
                own, alike = 0, 12 * sum(p.numel() for p in named["model"].parameters())
            else:
                own, alike = 12 * sum(s.numel() for s in named["model"].shards()), 0
            sizes[t.rank] = own  # noqa: B023
            buddies = copied[t.rank] = buddy.Buddies(t, named)  # noqa: B023
            for step in range(4):
                train(t, step, **named)  # Adam's moments exist after the first
                before = t.count(label="buddy shard").bytes_sent
                numbers = t.count(label="buddy numbers").bytes_sent
                buddies.save(step)
                buddies.settle()
                sent = t.count(label="buddy shard").bytes_sent - before
                assert sent == (own if n > 1 else 0)  # noqa: B023
                told = t.count(label="buddy numbers").bytes_sent - numbers
                assert told == (16 + len(buddies.mine[step].numbers) if n > 1 else 0)  # noqa: B023
            assert buddy.shard_bytes(named["model"], named["optimizer"]) == own
            return alike

        alike = simulate(n, body)
        for rank, buddies in copied.items():
            left = sizes[(rank - 1) % n] if n > 1 else 0
            assert buddies.n_bytes() == 2 * sizes[rank] + 2 * left + alike[rank]


def test_the_shard_travels_behind_the_step():
    """With a step longer than the transfer, save() waits for latencies only; with none, for all."""
    beta, exposed = 1e-6, {}
    for seconds in (0.0, 1.0):
        def body(t):
            named = run(t, "zero1", 1)
            buddies = buddy.Buddies(t, named)
            for step in range(1, 4):
                buddies.save(step)
                t.compute(seconds)  # noqa: B023
            buddies.settle()
            return buddies.exposed_s, buddy.shard_bytes(named["model"], named["optimizer"])

        exposed[seconds], n_bytes = simulate(2, body, beta=beta)[0]
    assert exposed[0.0] - exposed[1.0] == pytest.approx(3 * n_bytes * beta, rel=0.1)


def test_waiting_and_copying_are_timed_apart():
    """The clock goes on by a second whenever it is read."""
    def body(t):
        buddies = buddy.Buddies(t, run(t, "dp", 1))
        clock = itertools.count(1.0)
        t.time = lambda: next(clock)
        for step in range(3):
            buddies.save(step)
        return buddies.exposed_s, buddies.copied_s

    assert simulate(1, body) == [(3.0, 3.0)]


GRIDS = [dict(tp=2, pp=2), dict(tp=2, dp=2), dict(pp=2, dp=2), dict(tp=2, pp=2, dp=2)]


@pytest.mark.parametrize("axes", some(GRIDS[::-1]), ids=str)
def test_a_divided_model_with_a_replacement_is_the_run_without_a_death(axes):
    """Tensor and pipeline parallelism, ZeRO over dp, dropout: the same bits on every rank."""
    n, stage = math.prod(axes.values()), state_of("grid", **axes)
    plain = simulate(n, lambda t: weights(run(t, stage, STEPS - 1 + MORE)))
    for lost in (0, n // 2) if n < 8 else (5,):
        order = [None if old == lost else old for old in range(n)]
        step, after = healed(stage, trained(n, stage), order)
        assert step == STEPS - 1 and after == plain, lost


def test_a_divided_model_is_not_healed_on_fewer_ranks_nor_without_a_buddy():
    copied = trained(4, "grid")
    reports = [[copied[r].report()] for r in range(4)]
    assert buddy.choose([*reports[:1], [], *reports[2:]]) == (0, STEPS - 1)
    assert buddy.choose([*reports[:1], *reports[2:]]) is None
    assert buddy.choose([*reports[:1], [], [], *reports[3:]]) is None


def test_a_divided_model_sends_all_that_a_rank_has_and_no_other_message():
    """S = 3 x 8 bytes of each parameter of the rank (float64 weights, m, v); the numbers."""
    def body(t):
        t = Ledger(t)
        named = run(t, "grid", 1)
        buddies, sent = buddy.Buddies(t, named), t.bytes_sent
        buddies.save(1)
        buddies.settle()
        barrier = t.count(label="buddy agreement").bytes_sent
        own = 24 * sum(p.numel() for p in named["model"].parameters())
        numbers = 16 + len(buddies.mine[1].numbers)
        assert t.bytes_sent - sent - barrier == own + numbers

    simulate(4, body)


def test_what_compression_owes_of_a_divided_model_is_refused():
    def body(t):
        model = nn.Linear(2, 2)
        model.weight.declare(is_local=True)
        with pytest.raises(TypeError, match=f"rank {t.rank}: no copy of the residuals is kept"):
            buddy._parts(t, {"model": Compressed(model, t, DGC(0.9))})

    simulate(2, body)
