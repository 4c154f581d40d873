"""Memory that all ranks of a node see, and the signals that order its use.

    w = t.shared(n_bytes)           collective the first time; the same window on every later call
    w.pieces[p]                     rank p's n_bytes, as uint8: read any, write your own
    w.signal(kind, note)            "what I wrote until now may be read"
    w.wait(kind, note)              until every rank has signalled as often as this one has waited

    rank 0   write 0 | signal ------.--> wait | read 0, 1     After wait a rank sees all that was
    rank 1   write 1 --- | signal --'--> wait | read 0, 1     written before the signals.

Between processes a signal is a count in shared memory: only its rank writes it, the others read it
until it is large enough. Counts only grow, so nothing is reset between uses. `note` is a number
that must be equal on all ranks, here the size of the array: else wait raises SizeMismatch.

`Flags` is the window of MPI processes (mpi.py makes the memory). `Messages` is the simulator's:
plain arrays, and a signal is an empty message, so that the modelled clock and the deadlock report
take it into account.

Test: tests/comm/transport/test_window.py, test_shared_memory.py   Used by: shared_memory.py
"""

import os
import time
from abc import ABC, abstractmethod

import numpy as np

from minidl.comm.call_code import BITS, check_code
from minidl.comm.checks import size_mismatch
from minidl.comm.labels import current_code, current_label

KINDS = 2  # of signals: shared_memory.py needs two
LINE = 64  # bytes of a cache line: two ranks' counts in one line would slow each other down
HEADER = KINDS * LINE  # before each rank's piece
NOTE_BITS = 63 - BITS  # of a note; above them the code of the collective: 8 bytes in all
TAG = 32760  # and above, of the simulator's signals; users' tags are smaller

# How to wait, by the number of looks at a count. A look takes 0.3 us, with sched_yield 1 us.
# If every rank has a core: 3 ms, a time slice of the operating system. So a peer that lost its core
# for one slice is back before this rank yields its own; else each signal could cost a slice.
SPINS = 10_000
YIELDS = 2000  # then, or at once where ranks share cores: let other processes run
NAP_S = 100e-6  # then sleep: the peer computes, and the core may give it its power


class NoSharedMemory(RuntimeError):
    """The ranks of a group do not share memory. Raised on all of them."""


class Window(ABC):
    """The ranks' pieces, each twice: as two halves of equal size, to use in turn."""

    def __init__(self, t, memory):
        self.rank, self.pieces = t.rank, [m[HEADER:] for m in memory]
        self.others = [peer for peer in range(t.size) if peer != t.rank]
        self._typed, self._turn = {}, 0
        self._signalled, self._waited = [0] * KINDS, [0] * KINDS

    def halves(self, dtype):
        """[half][rank]: the pieces' halves as arrays of `dtype`."""
        if dtype not in self._typed:
            half = len(self.pieces[0]) // 2
            n_bytes = half // dtype.itemsize * dtype.itemsize
            self._typed[dtype] = [
                [p[lo : lo + n_bytes].view(dtype) for p in self.pieces] for lo in (0, half)]
        return self._typed[dtype]

    def take_turns(self, n):
        """The number of the first of n turns. Turn i uses half i % 2, on all ranks."""
        self._turn += n
        return self._turn - n

    def _compare(self, peer, note, theirs):
        """Raise unless the peer signalled the same note, in the same collective."""
        check_code(self, peer, current_code(), theirs >> NOTE_BITS, current_label())
        theirs &= (1 << NOTE_BITS) - 1
        if theirs != note:
            raise size_mismatch(self.rank, peer, note, theirs)

    @abstractmethod
    def signal(self, kind, note):
        """All that this rank wrote may now be read."""

    @abstractmethod
    def wait(self, kind, note):
        """Until every rank has signalled this kind as often as this one has waited for it."""

    def moved(self, peer, n_read, n_given):  # noqa: B027  for ledgers and modelled clocks
        """This rank reads n_read bytes of the peer's piece, the peer n_given of this one's."""


class Flags(Window):
    """Between processes. `fence()` orders memory accesses and lets other threads run."""

    def __init__(self, t, memory, fence):
        super().__init__(t, memory)
        self._fence = fence
        # [kind][rank]: count, the note of even counts, the note of odd counts; 8 bytes each, which
        # processors write and read in one piece.
        self._words = [[memoryview(m)[k * LINE : (k + 1) * LINE].cast("q") for m in memory]
                       for k in range(KINDS)]
        self._spins = SPINS if t.size <= os.cpu_count() else 0

    def signal(self, kind, note):
        note += current_code() << NOTE_BITS
        self._signalled[kind] = count = self._signalled[kind] + 1
        mine = self._words[kind][self.rank]
        mine[1 + count % 2] = note
        self._fence()  # a processor may reorder: first the data and the note, ...
        mine[0] = count

    def wait(self, kind, note):
        self._waited[kind] = count = self._waited[kind] + 1
        words = self._words[kind]
        for peer in self.others:
            theirs, looks = words[peer], 0
            while theirs[0] < count:
                looks += 1
                self._pause(looks)
        self._fence()  # ... then the count; and here first the count, then the data
        for peer in self.others:
            self._compare(peer, note, words[peer][1 + count % 2])

    def _pause(self, looks):
        if looks <= self._spins:
            self._fence()
        elif looks <= self._spins + YIELDS:
            self._fence()  # sched_yield keeps Python's lock: a background thread could not go on
            os.sched_yield()
        else:
            time.sleep(NAP_S)


class Messages(Window):
    """Between simulated ranks. A byte read of a peer's piece takes the link's beta."""

    def __init__(self, t, memory, betas, charge):
        super().__init__(t, memory)
        self._t, self._betas, self._charge = t, betas, charge
        self._notes = [m[:HEADER].view(np.int64) for m in memory]

    def signal(self, kind, note):
        note += current_code() << NOTE_BITS
        self._signalled[kind] += 1
        self._notes[self.rank][2 * kind + self._signalled[kind] % 2] = note
        for peer in self.others:
            self._t.isend(_EMPTY, peer, TAG + kind).wait()

    def wait(self, kind, note):
        self._waited[kind] += 1
        requests = [self._t.irecv(_EMPTY, peer, TAG + kind) for peer in self.others]
        for request in requests:
            request.wait()
        for peer in self.others:
            theirs = int(self._notes[peer][2 * kind + self._waited[kind] % 2])
            self._compare(peer, note, theirs)

    def moved(self, peer, n_read, n_given):
        self._charge(n_read * self._betas[peer])


_EMPTY = np.empty(0, np.uint8)
