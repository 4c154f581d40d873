"""A rank that computes k times the median is named, with its host and the ratio; others are not."""

import os
import re

import pytest

from minidl.comm.observe import lookout
from minidl.comm.observe.lookout import Book, Lookout
from minidl.comm.observe.stragglers import STEPS, stragglers
from minidl.comm.observe.waits import State
from tests.cli.faults import minidl_run
from tests.conftest import whole_form
from tests.mpi.launch import require_mpi


def states(*paces, steps=0, silent=()):
    """{rank: State} of ranks that have done so many steps, each computing so many seconds."""
    return {rank: State(rank, host=f"node{rank}", steps=steps, computed_s=steps * pace,
                        silent="gone" if rank in silent else "")
            for rank, pace in enumerate(paces)}


def found(*paces, steps=STEPS, **more):
    return [s.rank for s in stragglers(states(*paces), states(*paces, steps=steps, **more))]


@pytest.mark.parametrize("paces, ranks", [
    ((0.1, 0.1, 0.3, 0.1), [2]), ((0.1, 0.1, 0.19, 0.1), []), ((0.1, 0.2), [1]),
    ((0.1, 0.5, 0.5), []),  # the majority is slow: then it is the others that are fast
    ((0.5, 0.1, 0.1, 0.1, 0.5), [0, 4]), ((0.0, 0.0, 0.0), []), ((0.1,), []),
])
def test_who_is_named(paces, ranks):
    assert found(*paces) == ranks


def test_it_must_be_slow_for_as_many_steps_as_wanted():
    assert found(0.1, 0.3, 0.1, steps=STEPS - 1) == []


def test_a_rank_that_does_not_answer_counts_for_nothing():
    assert found(0.1, 0.3, 0.1, silent=[1]) == []


def test_what_was_before_does_not_count():
    before, after = states(0.1, 9.0, 0.1, steps=100), states(0.1, 9.0, 0.1, steps=100)
    for state in after.values():
        state.steps, state.computed_s = 100 + STEPS, state.computed_s + STEPS * 0.1
    assert stragglers(before, after) == []


def test_the_sentence_has_name_host_and_ratio():
    one, = stragglers(states(0.1, 0.25, 0.1), states(0.1, 0.25, 0.1, steps=STEPS))
    assert str(one) == ("rank 1 on node1 is a straggler: in its last 20 steps it computed 0.25 s a "
                        "step, 2.5 times the median of the ranks, which is 0.1 s")


def test_a_wait_is_not_computing(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(lookout.time, "monotonic", lambda: clock[0])

    def pass_by(seconds):
        clock[0] += seconds

    book = Book()
    pass_by(2.0)
    book.wait([], ("for a test",), pass_by, 5.0)
    pass_by(1.0)
    book.stepped()
    pass_by(9.0)  # of the next step
    assert (book.steps, book.computed_s) == (1, 3.0)


class Looking(Lookout):
    """The first rank's lookout, without threads and sockets."""

    def __init__(self, *answers):
        self.rank, self.ranks, self.book = 0, (0, 1, 2), Book()
        self.answers, self.said, self.asked = list(answers), [], 0
        self._paces, self._slow, self._say = (-STEPS, {}, 0.0), set(), self.said.append

    def _ask_all(self):
        self.asked += 1
        return self.answers.pop(0)

    def at(self, steps, now):
        self.book.steps = steps
        self._look_at_paces(now)


def test_each_is_named_once_and_again_after_it_was_well():
    slow = [states(0.1, 0.4, 0.1, steps=n * STEPS) for n in range(4)]
    well = states(0.1, 0.1, 0.1, steps=4 * STEPS)
    well[1].computed_s += slow[3][1].computed_s - 3 * STEPS * 0.1
    ill = states(0.1, 0.1, 0.1, steps=5 * STEPS)
    ill[1].computed_s = well[1].computed_s + STEPS * 0.4
    looking = Looking(*slow, well, ill)
    for n in range(6):
        looking.at(n * STEPS, 10.0 * (n + 1))
    assert looking.asked == 6 and len(looking.said) == 2
    assert all("rank 1 on node1" in text for text in looking.said)


def test_it_is_asked_neither_too_often_nor_too_soon():
    looking = Looking(*[states(0.1, 0.1, 0.1)] * 3)
    looking.at(0, 10.0)
    looking.at(STEPS - 1, 20.0)  # too few steps
    looking.at(5 * STEPS, 14.0)  # too soon
    assert looking.asked == 1
    looking.at(5 * STEPS, 15.0)
    assert looking.asked == 2


SCRIPT = """\
import time, numpy as np
from minidl.comm import ring, world
from minidl.comm.observe import lookout
lookout.PACE_S = 1.0
t = world()
end = time.monotonic() + 2.5
while True:
    time.sleep(0.03 if t.rank == 1 else 0.002)
    more = ring.all_reduce(t, np.array([float(time.monotonic() < end)]))[0]
    t.stepped()
    if more < t.size:
        break
"""


@whole_form
@pytest.mark.mpi
@pytest.mark.slow
def test_the_slow_rank_of_a_run_is_named_and_the_run_goes_on(tmp_path):
    require_mpi()
    (tmp_path / "script.py").write_text(SCRIPT)
    done = minidl_run("mpi", tmp_path / "script.py", n=3)
    assert done.returncode == 0, done.stderr
    ranks = re.findall(rf"watch: rank (\d) on {os.uname().nodename} is a straggler", done.stderr)
    assert ranks == ["1"], done.stderr
