"""Memory that all ranks of a node see, and the signals that order its use.

    w = t.shared(n_bytes)           all ranks call it; later calls return the same window
    w.pieces[p]                     rank p's n_bytes, as uint8: read any piece, write your own
    w.signal(kind, note)            tells the others that they may read all that this rank wrote
    w.wait(kind)                    waits until every rank has called signal as often as this rank
                                    has called wait

    rank 0   write 0 | signal ------.--> wait | read 0, 1     After wait a rank sees all that was
    rank 1   write 1 --- | signal --'--> wait | read 0, 1     written before the signals.

Between processes a signal is a count in shared memory. Each rank has its own count, and only this
rank writes it. The other ranks read the count until it is large enough. Counts only grow, so
nothing is reset between uses. `note` is a number that must be equal on all ranks, here the size of
the array. A rank writes its note before its count. If the notes differ, wait raises SizeMismatch.

`Flags` is the window of MPI processes (mpi.py makes the memory). It can also do the whole
all-reduce of a short array in one call of C (kernels/host/window.cpp). `Messages` is the window of
the simulator. Its memory is plain arrays. In the simulator a signal is an empty message. So a
signal takes modelled time, and a deadlock report can show a wait for a signal.

Test: tests/comm/transport/test_window.py, test_window_in_c.py   Used by: shared_memory.py
"""

import ctypes
import functools
import os
import struct
import time
from abc import ABC, abstractmethod

import numpy as np

from minidl.comm.call_code import BITS, check_code
from minidl.comm.checks import size_mismatch
from minidl.comm.labels import current_code, current_label
from minidl.cuda.host import compiler, cpu
from minidl.cuda.host.includes import KernelError

KINDS = 2  # the number of kinds of signals; shared_memory.py needs two
ARRIVED, REDUCED = range(KINDS)  # the signals A and R of shared_memory.py
LINE = 64  # bytes of a cache line: two ranks' counts in one line would slow each other down
HEADER = KINDS * LINE  # bytes of counts and notes before each rank's piece
NOTE_BITS = 63 - BITS  # bits of a note. A note and the collective's code share an 8-byte number
TAG = 32760  # TAG + kind is the tag of a simulated signal; users' tags are smaller

# How a rank waits: it reads the count SPINS times, then YIELDS times with sched_yield between the
# reads, then it sleeps between the reads. A read takes 0.3 us. With sched_yield it takes 1 us.
# If every rank has its own core, a rank spins for 3 ms. This is a time slice of the operating
# system. So if a peer lost its core for one slice, the peer runs again before this rank yields its
# own core. Without the spinning, each signal could cost a slice.
SPINS = 10_000
YIELDS = 2000  # reads that let other processes run. If ranks share cores, SPINS counts as 0
NAP_S = 100e-6  # seconds of a sleep, in which other processes can use this core

# The number of lists of views that a window keeps. Making the views of a short array takes longer
# than its sum, and most programs sum arrays of the same few lengths again and again.
VIEWS = 100

# For kernels/host/window.cpp: the only dtype that it adds, the results of its functions, and a
# function that makes a struct Call.
FLOAT32 = np.dtype(np.float32)
DONE, LATE, DIFFER, REFUSED = range(4)
PACK_CALL = struct.Struct("6q").pack


class NoSharedMemory(RuntimeError):
    """The ranks of a group do not share memory. All ranks raise this error."""


class Window(ABC):
    """Memory that all ranks can read, one piece per rank. Each piece has two equal halves. They are
    used in turn.

    pieces   a list with the piece of each rank, a uint8 array of n_bytes
    others   a list of the other ranks"""

    def __init__(self, t, memory):
        self.rank, self.pieces = t.rank, [m[HEADER:] for m in memory]
        self.others = [peer for peer in range(t.size) if peer != t.rank]
        self._views, self._turn = {}, 0
        self._signalled, self._waited = [0] * KINDS, [0] * KINDS

    def halves(self, dtype, length):
        """Returns a list h with two lists, one for each half: h[half][rank] has the first `length`
        elements of this half of the rank's piece, as an array of `dtype`."""
        if (dtype, length) not in self._views:
            if len(self._views) == VIEWS:
                self._views.clear()
            n_bytes = length * dtype.itemsize
            half = len(self.pieces[0]) // 2
            self._views[dtype, length] = [
                [p[lo : lo + n_bytes].view(dtype) for p in self.pieces] for lo in (0, half)]
        return self._views[dtype, length]

    def take_turns(self, n):
        """A turn is one use of one half of the window. Turn i uses half i % 2 on all ranks. This
        method reserves the next n turns, and returns the number of the first turn."""
        self._turn += n
        return self._turn - n

    def _compare(self, peer, mine, theirs):
        """Raises CallMismatch unless the peer is in the same collective. Raises SizeMismatch unless
        the peer signalled the same note.

        mine, theirs: the numbers that this rank and the peer wrote with their signals. Each number
        contains the code of the rank's call (call_code.py) and its note."""
        check_code(self, peer, mine >> NOTE_BITS, theirs >> NOTE_BITS, current_label())
        if mine != theirs:
            mask = (1 << NOTE_BITS) - 1
            raise size_mismatch(self.rank, peer, mine & mask, theirs & mask)

    @abstractmethod
    def signal(self, kind, note):
        """Tells the other ranks that they may read all that this rank wrote. kind: 0 or 1, because
        there are two independent signals. note: a number that must be equal on all ranks."""

    @abstractmethod
    def wait(self, kind):
        """Waits until every rank has called signal() with this kind as often as this rank has
        called wait() with this kind. Call signal() first: wait() compares the other ranks' notes
        with the note of this rank's signal. Raises SizeMismatch if the notes differ."""

    def all_reduce_in_c(self, x, op):
        """Does the whole all-reduce of a short array x by C code, as shared_memory.py does it in
        Python. Takes one turn. Returns False, and has done nothing, if there is no C code for x and
        op, or in this class."""
        return False

    def moved(self, peers, n_read, n_given):  # noqa: B027  for ledgers and modelled clocks
        """Records that this rank reads n_read bytes of each peer's piece, and that each peer reads
        n_given bytes of this rank's piece. peers: a list of ranks. This base class records
        nothing."""


class Flags(Window):
    """The window of MPI processes. fence: a function without arguments. It orders memory accesses,
    and lets other threads run."""

    def __init__(self, t, memory, fence):
        super().__init__(t, memory)
        self._fence = fence
        # [kind][rank] has three numbers: the count, the note of the last even count, and the note
        # of the last odd count. Each number has 8 bytes, so a processor writes or reads it in one
        # operation.
        self._words = [[memoryview(m)[k * LINE : (k + 1) * LINE].cast("q") for m in memory]
                       for k in range(KINDS)]
        self._spins = SPINS if t.size <= os.cpu_count() else 0
        self._in_c = functions_in_c()
        self._for_c = self._what_c_needs(memory)
        self._address = self._for_c.ctypes.data

    def _what_c_needs(self, memory):
        """Returns a struct Window of kernels/host/window.cpp, as an array of int64."""
        addresses = [address for m, piece in zip(memory, self.pieces, strict=True)
                     for address in (m.ctypes.data + ARRIVED * LINE, piece.ctypes.data)]
        half_bytes, crowded = len(self.pieces[0]) // 2, self._spins == 0
        return np.array([len(memory), self.rank, id(np.ndarray), half_bytes, crowded, *addresses],
                        np.int64)

    def signal(self, kind, note):
        self._signalled[kind] = count = self._signalled[kind] + 1
        mine = self._words[kind][self.rank]
        mine[1 + count % 2] = note + (current_code() << NOTE_BITS)
        self._fence()  # the data and the note must be written before the count
        mine[0] = count

    def wait(self, kind):
        self._waited[kind] = count = self._waited[kind] + 1
        words = self._words[kind]
        for peer in self.others:
            theirs, looks = words[peer], 0
            while theirs[0] < count:
                looks += 1
                self._pause(looks)
        self._fence()  # read the count before the data
        place = 1 + count % 2
        mine = words[self.rank][place]
        for peer in self.others:
            if words[peer][place] != mine:
                self._compare(peer, mine, words[peer][place])

    def all_reduce_in_c(self, x, op):
        if self._in_c is None or op is not np.add or x.dtype is not FLOAT32:
            return False
        all_reduce, add = self._in_c
        count, n_bytes, turn = self._signalled[ARRIVED] + 1, x.nbytes, self._turn
        note = n_bytes + (current_code() << NOTE_BITS)
        call = PACK_CALL(self._address, id(x), n_bytes, turn % 2, count, note)
        result = all_reduce(call)
        if result == REFUSED:
            return False
        self._turn, self._signalled[ARRIVED] = turn + 1, count
        if result == DONE:
            self._waited[ARRIVED] = count
        else:  # a peer is late, or its note differs
            self.wait(ARRIVED)
            add(call)
        return True

    def _pause(self, looks):
        if looks <= self._spins:
            self._fence()
        elif looks <= self._spins + YIELDS:
            self._fence()  # releases Python's lock, so a background thread can run
            os.sched_yield()
        else:
            time.sleep(NAP_S)


@functools.cache
def functions_in_c():
    """Returns the functions minidl_window_all_reduce and minidl_window_add of
    kernels/host/window.cpp. Compiles the file if needed. Returns None if there is no compiler, or
    if the memory layout of NumPy's arrays is unknown."""
    try:
        flags = [*compiler.find_compiler().runtime_flags, "-O3"]
        library = compiler.load_host("window", flags, "window.cpp")
    except (KernelError, OSError):
        return None
    if not cpu.arrays_are_known(library):
        return None
    functions = library.minidl_window_all_reduce, library.minidl_window_add
    for function in functions:
        function.argtypes = [ctypes.c_char_p]
    return functions


class Messages(Window):
    """The window of simulated ranks. If this rank reads n bytes in a peer's piece, its clock moves
    by n times the beta of the link to this peer.

    betas: a list with the beta of each rank's link to this rank. charge(seconds): a function that
    adds this time to this rank's clock."""

    def __init__(self, t, memory, betas, charge):
        super().__init__(t, memory)
        self._t, self._betas, self._charge = t, betas, charge
        self._notes = [m[:HEADER].view(np.int64) for m in memory]

    def signal(self, kind, note):
        self._signalled[kind] = count = self._signalled[kind] + 1
        notes = self._notes[self.rank]
        notes[2 * kind + count % 2] = note + (current_code() << NOTE_BITS)
        for peer in self.others:
            self._t.isend(_EMPTY, peer, TAG + kind).wait()

    def wait(self, kind):
        self._waited[kind] = count = self._waited[kind] + 1
        requests = [self._t.irecv(_EMPTY, peer, TAG + kind) for peer in self.others]
        for request in requests:
            request.wait()
        place = 2 * kind + count % 2
        for peer in self.others:
            self._compare(peer, int(self._notes[self.rank][place]), int(self._notes[peer][place]))

    def moved(self, peers, n_read, n_given):
        for peer in peers:
            self._charge(n_read * self._betas[peer])


_EMPTY = np.empty(0, np.uint8)
