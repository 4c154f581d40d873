"""Signals between processes, on memory that this test writes for the other rank."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from minidl.comm.checks import SizeMismatch
from minidl.comm.transport import window
from minidl.comm.transport.window import HEADER, KINDS, LINE, Flags


def flags(fence=None):
    """Rank 0's Flags of two ranks, and both ranks' memory."""
    looks = itertools.count()

    def impatient():
        assert next(looks) < 20, "waits for what is there, or never comes"

    memory = [np.zeros(HEADER + 64, np.uint8) for _ in range(2)]
    return Flags(SimpleNamespace(rank=0, size=2), memory, fence or impatient), memory


def words(memory, kind):
    """A rank's count of a kind of signal, and the notes of even and of odd counts."""
    return memory[kind * LINE : (kind + 1) * LINE].view(np.int64)[:3]


@pytest.mark.parametrize("kind", range(KINDS))
def test_a_peer_may_be_ahead(kind):
    flag, (_, theirs) = flags()
    # Rank 1 has signalled twice when this rank looks for the first time: no waiting for equality.
    words(theirs, kind)[:] = 2, 22, 11
    for note in (11, 22):
        flag.signal(kind, note)
        flag.wait(kind)


@pytest.mark.parametrize("kind", range(KINDS))
def test_a_note_is_kept_until_the_signal_after_the_next(kind):
    flag, (mine, theirs) = flags()
    for count, note in enumerate((40, 41, 42), start=1):
        flag.signal(kind, note)
        assert words(mine, kind)[0] == count
        assert words(mine, kind)[1 + count % 2] == note
    assert sorted(words(mine, kind)[1:]) == [41, 42]
    assert not mine[(1 - kind) * LINE : (2 - kind) * LINE].any(), "the other kind is untouched"


@pytest.mark.parametrize("kind", range(KINDS))
def test_a_note_that_differs_raises(kind):
    flag, (_, theirs) = flags()
    words(theirs, kind)[:] = 2, 41, 40
    flag.signal(kind, 40)
    flag.wait(kind)
    flag.signal(kind, 40)
    with pytest.raises(SizeMismatch, match="expected 40 bytes from rank 1, got 41"):
        flag.wait(kind)


def test_the_views_have_the_length_of_their_array(monkeypatch):
    monkeypatch.setattr(window, "VIEWS", 2)  # so some views are made again
    flag, (mine, theirs) = flags()
    for dtype, length in [("f4", 3), ("f4", 2), ("i2", 3), ("f4", 3), ("f4", 8), ("f4", 3)]:
        halves = flag.halves(np.dtype(dtype), length)
        for half, (own, peers) in enumerate(halves):
            assert own.dtype == dtype and own.shape == peers.shape == (length,)
            own[:] = 1 + half
            assert (mine[HEADER + 32 * half :][:own.nbytes].view(dtype) == 1 + half).all()
            assert np.shares_memory(peers, theirs) and not np.shares_memory(peers, mine)
    assert flag.halves(np.dtype("f4"), 3) is halves, "they are made once"


def test_data_and_note_are_in_memory_before_the_count_and_are_read_after_it():
    seen = []
    flag, (mine, theirs) = flags(lambda: seen.append(words(mine, 0).tolist()))
    flag.signal(0, 7)
    assert seen == [[0, 0, 7]], "one fence, between the note and the count"

    def fence():
        seen.append("fence")
        words(theirs, 0)[:] = 1, 0, 7  # the peer signals while this rank looks at its count

    flag, (mine, theirs) = flags(fence)
    words(mine, 0)[:] = 1, 0, 7
    seen.clear()
    flag.wait(0)
    assert seen[-1] == "fence" and len(seen) >= 2, "one in the pause, one after the count was seen"


def test_who_waits_long_lets_others_run_and_then_naps(monkeypatch):
    calls = []

    def nap(seconds):
        calls.append("nap")
        words(theirs, 0)[:] = 1, 0, 3

    yields = SimpleNamespace(sched_yield=lambda: calls.append("yield"), cpu_count=lambda: 1)
    monkeypatch.setattr(window, "os", yields)
    monkeypatch.setattr(window, "time", SimpleNamespace(sleep=nap))
    waiting, (_, theirs) = flags(lambda: None)  # two ranks on one core: they do not spin
    waiting.signal(0, 3)
    waiting.wait(0)
    assert calls == ["yield"] * window.YIELDS + ["nap"]
