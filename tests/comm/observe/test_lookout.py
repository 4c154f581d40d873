"""When a rank that waits long speaks: after two looks that agree, or at its deadline. No MPI."""

import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from minidl.comm.observe import lookout
from minidl.comm.observe.lookout import Book, Lookout
from tests.comm.observe.test_waits import receiving, states


class Looking(Lookout):
    """Rank 0's lookout without threads and sockets: what the ranks answer is given."""

    def __init__(self, *answers, deadline_s=60.0):
        self.rank, self.book, self.deadline_s, self._since = 0, Book(), deadline_s, {}
        self.answers, self.said = list(answers), []

    def _ask_all(self):
        return self.answers.pop(0)

    def _report_stuck(self, states, lost):
        self.said.append(f"stuck {lost}")

    def _report_late(self, states, waited):
        self.said.append("late")


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch):
    monkeypatch.setattr(lookout.time, "sleep", lambda seconds: None)


def circle(serial=1):
    """Ranks 0 and 1 wait for each other, rank 0 in its wait of this number."""
    return states(replace(receiving(1, 0), serial=serial), receiving(0, 1))


COMPUTES = states(receiving(1, 0), "computes")


@pytest.mark.parametrize(
    "first, second, said",
    [
        (circle(), circle(), ["stuck [0, 1]"]),
        (circle(1), circle(2), []),  # rank 0 has got a message and waits for the next
        (circle(), COMPUTES, []),
        (COMPUTES, None, []),
        (states(receiving(2, 0), receiving(2, 1), receiving(1, 2)), None, ["stuck [0, 1, 2]"]),
    ],
    ids=["twice the same", "another wait", "rank 1 goes on", "rank 1 computes", "behind a circle"],
)
def test_a_deadlock_is_certain_after_two_looks_without_a_move(first, second, said):
    looking = Looking(first, second or first)
    looking._look(waited=1.0)
    assert looking.said == said


@pytest.mark.parametrize("waited, said", [(59.0, []), (60.0, ["late"])])
def test_who_computes_is_late_at_the_deadline(waited, said):
    looking = Looking(COMPUTES)
    looking._look(waited)
    assert looking.said == said


def test_a_wait_is_as_long_as_it_was_seen_without_a_new_one(monkeypatch):
    looking, clock = Looking(), [0.0]
    monkeypatch.setattr(lookout.time, "monotonic", lambda: clock[0])

    def seconds(at):
        clock[0] = at
        return looking._longest()[0]

    first, second = (1, (), ("a",), False, None), (2, (), ("b",), False, None)
    looking.book.waits = {7: first}
    assert [seconds(10.0), seconds(12.0)] == [0.0, 2.0]
    looking.book.waits = {7: second}  # of the same thread
    assert [seconds(13.0), seconds(13.5)] == [0.0, 0.5]
    looking.book.waits = {7: second, 8: first}  # the longest of all threads
    assert seconds(16.0) == 3.0
    looking.book.waits = {}
    assert seconds(17.0) == 0.0


def test_a_look_keeps_no_array_of_a_function_that_returns_meanwhile():
    """Else memory.record() would now and then count an array twice as long, on MPI alone."""
    go, gone, arrays = threading.Event(), threading.Event(), []

    def function():
        array = np.zeros(4)
        arrays.append(weakref.ref(array))
        go.wait()

    def work():
        function()
        gone.set()

    def needs():  # the look is in the middle of its work
        go.set()
        gone.wait(10)
        return [] if arrays[0]() is None else [(1, "its array lives", 1)]

    thread = threading.Thread(target=work)
    thread.start()
    while not arrays:
        pass
    looking = Looking()
    looking._main, looking._last_states = thread.ident, {}
    looking.book.waits = {thread.ident: (1, needs, ("a",), False, None)}
    (wait,) = looking.state().waits
    thread.join()
    assert gone.is_set() and not wait.needs


def test_a_server_that_nobody_calls_has_no_deadline(monkeypatch):
    looking, clock = Looking(), [0.0]
    monkeypatch.setattr(lookout.time, "monotonic", lambda: clock[0])
    from_anybody = 1, [(1, "k", 1)], ("a",), True, None
    from_one = 2, [(1, "k", 1)], ("b",), False, None
    looking.book.waits = {7: from_anybody, 8: (3, [], ("an event",), False, None)}
    looking._longest()
    clock[0] = 400.0
    assert looking._longest() == (400.0, 0.0)
    looking.book.waits = {7: from_one}
    looking._longest()
    clock[0] = 500.0
    assert looking._longest() == (100.0, 100.0)
