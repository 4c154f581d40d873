"""The page and the real one go back to the same step, wherever death comes; and the run ends in the
bits of an uninterrupted one."""

import numpy as np
import pytest

from minidl.comm import Ledger
from minidl.comm import ring as real_ring
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.elastic.buddy import Report, choose
from minidl.plain import buddy, ring
from tests.conftest import ranks
from tests.elastic.test_buddy import Killed, Mortal

N_STEPS, LENGTH = 5, 3


def train(t, state, step):
    """A step that depends on all ranks, and rounds."""
    total = ring.all_reduce(t, state.copy())
    state *= 1.1
    state += 0.01 * total + step


def start(t):
    return np.random.default_rng([7, t.rank]).normal(size=LENGTH)


def run(t, copies, state, first=0):
    for step in range(first, N_STEPS):
        buddy.save(t, copies[t.rank], step, state)
        train(t, state, step)
    return state


def died(n, lost, n_messages):
    """The copies of all ranks after rank `lost` has died at its message of this number."""
    copies = [{} for _ in range(n)]

    def body(t):
        fuse = [n_messages, False]
        run(Mortal(t, fuse) if t.rank == lost else t, copies, start(t))

    with pytest.raises(RankFailed) as failure:
        simulate(n, body)
    assert isinstance(failure.value.__cause__, Killed)
    copies[lost] = {}
    return copies


def go_on(t, copies, lost):
    """(the step with which it went on, the state in the end)."""
    state = np.zeros(LENGTH)
    step = buddy.restore(t, copies[t.rank], lost, state)
    return step, run(t, copies, state, step)


@pytest.mark.parametrize("n, lost", [(2, 0), (3, 2), (4, 1), (5, 3)])
def test_wherever_a_rank_dies_the_run_ends_in_the_same_bits(n, lost):
    wanted = simulate(n, lambda t: run(t, [{} for _ in range(n)], start(t)))
    a_save = 1 + 2 * (n - 1)  # messages of a copy, and of a barrier
    seen = set()
    for n_messages in range(a_save + 1, N_STEPS * (a_save + 2 * (n - 1))):
        copies = died(n, lost, n_messages)
        reports = [[] if r == lost else [Report(0, r, n, True, list(mine), list(mine))]
                   for r, mine in enumerate(copies)]
        found = simulate(n, go_on, copies, lost)
        assert {(0, step) for step, _ in found} == {choose(reports)}
        for (_, state), want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(state, want)
        seen.add(found[0][0])
    assert seen == set(range(N_STEPS))


@ranks(2, 3, 4, 5, 8)
def test_a_save_sends_the_state_once(t):
    ledger, copies = Ledger(t), {}
    for step in range(3):
        buddy.save(ledger, copies, step, start(t))
    barrier = real_ring.bytes_sent(1, 8, t.size, t.rank)
    assert ledger.bytes_sent == 3 * (8 * LENGTH + barrier)
    assert list(copies) == [2]
