"""A short float32 all-reduce in C (kernels/host/window.cpp), beside the same steps in Python.

The ranks are two windows over the same memory in this process. Under MPI, tests/comm/
test_shared_memory.py and test_every_all_reduce.py run the C code on every rank."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from minidl.comm import shared_memory
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.watch import _WatchedWindow
from minidl.comm.transport import window
from minidl.comm.transport.window import ARRIVED, HEADER, Flags

pytestmark = pytest.mark.usefixtures("needs_compiler")
N_BYTES = 1 << 12  # of a piece


def windows(n):
    """The Flags of n ranks, over the same memory."""
    memory = [np.zeros(HEADER + N_BYTES, np.uint8) for _ in range(n)]
    return [Flags(SimpleNamespace(rank=r, size=n), memory, lambda: time.sleep(0))
            for r in range(n)]


def on_ranks(flags, work):
    """Runs work(flag) for every rank, each in its thread. Returns the results or the errors."""
    results = [None] * len(flags)

    def run(r):
        try:
            results[r] = work(flags[r])
        except Exception as error:
            results[r] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in range(len(flags))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


def reduced(flag, x):
    """Rank flag.rank's all-reduce of x through its window."""
    t = SimpleNamespace(size=len(flag.pieces), shared=lambda n_bytes: flag)
    return shared_memory.all_reduce.__wrapped__(t, x)


def arrays(n, length):
    """An array for each rank: large and small numbers, infinities, zeros and tiny numbers."""
    rng = np.random.default_rng(length)
    made = rng.normal(size=(n, length)) * 10.0 ** rng.integers(-44, 38, (n, length))
    made[:, ::7], made[:, 1::11] = -0.0, np.inf
    return made.astype(np.float32)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("in_python", [(), (0,), (1,), "all"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_bits_are_those_of_python_on_every_rank(n, in_python):
    """Also if some ranks run the Python code: both write the same signals."""
    flags = windows(n)
    for rank, flag in enumerate(flags):
        if in_python == "all" or rank in in_python:
            flag._in_c = None
    for length in (1, 2, 3, 8, 100, 257, 512, 0):
        given = arrays(n, length)
        want = given[0] + given[1]
        for x in given[2:]:
            want += x
        xs = given.copy()
        results = on_ranks(flags, lambda f, xs=xs: reduced(f, xs[f.rank]))
        assert all(result.base is xs for result in results)  # in place
        assert all(x.tobytes() == want.tobytes() for x in xs), length
        assert [f._signalled[ARRIVED] for f in flags] == [f._waited[ARRIVED] for f in flags]
    assert [f.take_turns(0) for f in flags] == [8] * n  # one turn for each of the 8 lengths


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_peer_that_is_late_is_waited_for():
    """In the third call, too, where its piece and its note are those of the first call."""
    late, early = windows(2)
    for call in range(4):
        xs = arrays(2, 50) * np.float32(1 + call)
        want = xs[0] + xs[1]

        def work(flag, xs=xs):
            if flag is late:
                time.sleep(0.03)  # much longer than C looks
            reduced(flag, xs[flag.rank])

        assert on_ranks([late, early], work) == [None, None]
        assert xs[0].tobytes() == xs[1].tobytes() == want.tobytes()


def test_an_array_of_two_axes_is_added_and_a_strided_one_too():
    """C adds the first in place; of the second Python adds a copy."""
    flags = windows(2)
    whole = [np.full((3, 4), 1 + rank, np.float32) for rank in range(2)]
    strided = [np.full((3, 8), 1 + rank, np.float32)[:, ::2] for rank in range(2)]
    for xs, in_place in ((whole, True), (strided, False)):
        results = on_ranks(flags, lambda f, xs=xs: reduced(f, xs[f.rank]))
        for x, result in zip(xs, results, strict=True):
            assert (result == np.full((3, 4), 3)).all() and (result is x) == in_place


def test_a_size_that_differs_raises_on_every_rank():
    flags = windows(2)
    xs = np.ones(8, np.float32), np.ones(9, np.float32)
    found = on_ranks(flags, lambda f: reduced(f, xs[f.rank]))
    assert all(isinstance(error, SizeMismatch) for error in found)
    assert "rank 0" in str(found[0]) and "got 36" in str(found[0])


def test_what_c_does_not_add_is_left_to_python():
    flag, peer = windows(2)
    peer._words[ARRIVED][peer.rank][0] = 100  # has signalled: if C began, it would not wait
    read_only = np.ones(4, np.float32)
    read_only.flags.writeable = False
    unaligned = np.zeros(17, np.uint8)[1:].view(np.float32)
    swapped = np.ones(4, np.dtype(np.float32).newbyteorder())
    no_array = SimpleNamespace(dtype=np.dtype(np.float32), nbytes=16)
    for x, op in [(np.ones(4), np.add), (np.ones(4, np.float16), np.add), (swapped, np.add),
                  (np.ones(4, np.int32), np.add), (np.ones(4, np.float32), np.maximum),
                  (read_only, np.add), (unaligned, np.add), (no_array, np.add)]:
        assert flag.all_reduce_in_c(x, op) is False
    assert flag._signalled == [0, 0] and not flag.pieces[0].any(), "nothing has been done"
    assert flag.take_turns(0) == 0
    assert flag._in_c is not None


def test_under_a_watch_python_does_it():
    """A Watch reports a wait only if signal and wait are called."""
    flag, peer = windows(2)
    peer._words[ARRIVED][peer.rank][0] = 100
    watch = SimpleNamespace(_lookout=SimpleNamespace(book=None), ranks=[0, 1])
    watched = _WatchedWindow(watch, flag, "world")
    assert watched.all_reduce_in_c(np.ones(4, np.float32), np.add) is False
    assert flag._signalled == [0, 0]


def test_without_a_compiler_python_does_it(monkeypatch):
    monkeypatch.setenv("MINIDL_CXX", "no-such-compiler")
    window.functions_in_c.cache_clear()
    try:
        flags = windows(2)
        assert flags[0]._in_c is None
        xs = arrays(2, 20)
        want = xs[0] + xs[1]
        on_ranks(flags, lambda f: reduced(f, xs[f.rank]))
        assert xs[0].tobytes() == want.tobytes()
    finally:
        window.functions_in_c.cache_clear()
