"""The transport of ranks that are MPI processes. `minidl.comm.world()` makes one (world.py).

Only bytes are sent (MPI.BYTE), so any dtype works.

Messages are cut into parts, because an MPI count is a 32-bit int. There are full parts of
`part_bytes`, then one shorter part, which may be empty. Every message ends with a shorter part. So
a receiver that expects another size always receives a part of the wrong size. If a rank fails, all
ranks end (abort.py).

Test: tests/mpi/   Tutorial: tutorials/00_hello.py
"""

import contextvars
import ctypes
import threading
import time
from concurrent.futures import Future
from functools import cached_property

import numpy as np

from minidl.comm.call_code import BITS, CallMismatch, explain
from minidl.comm.checks import check_array, check_peer, check_ranks, size_mismatch
from minidl.comm.labels import current_code, current_label
from minidl.comm.transport import communicators, staging
from minidl.comm.transport.abort import end_all
from minidl.comm.transport.protocol import Request, Transport
from minidl.comm.transport.window import HEADER, Flags, NoSharedMemory

PART_BYTES = 1 << 30  # below 2 GiB, because counts have 32 bits; 1 GiB is easy to see in a trace


class MPITransport(Transport):
    """A group of MPI processes.

    held: the group's communicators.Communicators. part_bytes: the size of a full part of a message.
    ranks: the world ranks of a subgroup. If None, this group has all ranks."""

    simulated = False

    def __init__(self, held, part_bytes=PART_BYTES, ranks=None):
        from mpi4py import MPI

        self._mpi, self._comm, self._part_bytes = MPI, held.comm, part_bytes
        self._held, comm = held, held.comm
        held.held_by(self)
        self.rank, self.size = comm.rank, comm.size
        self.ranks = tuple(range(comm.size)) if ranks is None else ranks
        self.world_rank = self.ranks[self.rank]
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self._windows = {}  # n_bytes -> Flags
        self._codes = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) & (1 << BITS) - 1

    @cached_property
    def cuda_aware(self):
        """True if the MPI library reads and writes device memory. An MPICH that was built for CUDA
        needs MPIR_CVAR_ENABLE_GPU=1 in its environment."""
        # Load mpi4py's own file. It is linked with MPI, so MPI's functions are found in it, too.
        return staging.says_cuda_aware(ctypes.CDLL(self._mpi.__file__))

    def isend(self, array, dst, tag=0):
        check_peer(self, dst, "dst")
        if not isinstance(array, np.ndarray):
            return staging.isend(self, array, dst, tag)
        data = _as_bytes(self, array)
        comm, tag, _ = self._way(tag)
        requests = [comm.Isend((p, self._mpi.BYTE), dst, tag) for p in self._parts(data)]
        return _Sends(requests, data, self._longest_nap(comm))

    def irecv(self, into, src, tag=0):
        check_peer(self, src, "src")
        if not isinstance(into, np.ndarray):
            return staging.irecv(self, into, src, tag)
        room = _as_bytes(self, into)
        comm, tag, any_tag = self._way(tag)
        requests = [comm.Irecv((p, self._mpi.BYTE), src, any_tag) for p in self._parts(room)]
        return _Receives(self, into, room, src, requests, tag, self._longest_nap(comm))

    def _longest_nap(self, comm):
        """Returns the longest sleep of `_wait` in seconds. 0 means that `_wait` does not sleep."""
        return self.longest_nap or (2e-4 if comm is self._comm else 0)

    def _way(self, tag):
        """Returns (communicator, tag of a send, tag of a receive) for a message with this tag.

        The messages of collectives have their own communicator. They are sent with the call's
        29-bit code as their tag (call_code.py), and received with any tag."""
        code = 0 if tag else current_code()
        if not code:
            return self._comm, tag, tag
        held = self._held
        # In a collective every rank sends or receives, so all ranks reach this line.
        if held.collectives is None:
            held.collectives = communicators.create(self._mpi, held, range(self.size))
        return held.collectives, code & self._codes, self._mpi.ANY_TAG

    def _check_tag(self, src, wanted, status):
        """Raises CallMismatch if a receive took a message of another collective call. wanted: the
        tag of this rank's call. status: MPI's Status of the receive."""
        if status.tag != wanted and status.tag >= 0:
            raise CallMismatch(explain(self.rank, src, wanted, status.tag, current_label()))

    def sendrecv(self, array, dst, into, src, tag=0):
        on_host = isinstance(array, np.ndarray) and isinstance(into, np.ndarray)
        largest = max(array.nbytes, into.nbytes)
        if not on_host or largest >= self._part_bytes or not into.flags.c_contiguous:
            return super().sendrecv(array, dst, into, src, tag)
        check_peer(self, dst, "dst")
        check_peer(self, src, "src")
        byte, status = self._mpi.BYTE, self._mpi.Status()
        data, room = _as_bytes(self, array), _as_bytes(self, into)
        comm, tag, any_tag = self._way(tag)
        try:
            comm.Sendrecv((data, byte), dst, tag, (room, byte), src, any_tag, status)
        except self._mpi.Exception as error:
            self._check_tag(src, tag, status)
            raise self._explain(error, src, into.nbytes) from None
        self._check_tag(src, tag, status)
        if status.Get_count(byte) != into.nbytes:
            raise size_mismatch(self.rank, src, into.nbytes, status.Get_count(byte))
        return into

    def recv_any(self, tag=0):
        mpi = self._mpi
        status = mpi.Status()
        # Mprobe waits inside MPI and holds MPI's lock, so it makes other threads' calls slow. With
        # Mprobe a remote call took 22 ms (MPICH, busy cores). With this loop it takes 1.5 ms.
        pause_s = 0.0
        comm, tag, any_tag = self._way(tag)
        while (message := comm.Improbe(mpi.ANY_SOURCE, any_tag, status)) is None:
            time.sleep(pause_s)
            pause_s = min(pause_s + 5e-6, 5e-4)
        self._check_tag(status.source, tag, status)
        parts = []
        while True:
            parts.append(np.empty(status.Get_count(mpi.BYTE), np.uint8))
            message.Recv((parts[-1], mpi.BYTE))
            if len(parts[-1]) < self._part_bytes:
                return status.source, parts[0] if len(parts) == 1 else np.concatenate(parts)
            message = comm.Mprobe(status.source, tag, status)

    def subgroup(self, ranks):
        ranks = check_ranks(self, ranks)
        if self.rank not in ranks:
            return None
        held = communicators.for_group(self._mpi, self._held, ranks)
        return type(self)(held, self._part_bytes, tuple(self.ranks[r] for r in ranks))

    def spawn(self, fn, *args):
        return _Thread(fn, args)

    def event(self):
        return threading.Event()

    def time(self):
        return time.perf_counter()

    def shared(self, n_bytes):
        if n_bytes not in self._windows:
            windows = self._held.windows
            if n_bytes not in windows:
                windows[n_bytes] = self._make_window(n_bytes)
            self._windows[n_bytes] = Flags(self, *windows[n_bytes])
        return self._windows[n_bytes]

    def _make_window(self, n_bytes):
        mpi, comm = self._mpi, self._comm
        node = comm.Split_type(mpi.COMM_TYPE_SHARED)
        least = comm.allreduce(node.size, mpi.MIN)
        node.Free()
        if least < self.size:
            raise NoSharedMemory(
                f"rank {self.rank}: a shared window needs all {self.size} ranks of its group on "
                f"one node; got a node with {least} of them. Use t.subgroup(ranks of a node).")
        window = mpi.Win.Allocate_shared(HEADER + n_bytes, comm=comm)
        window.Lock_all()  # begins the epoch that Sync, a memory fence, needs
        memory = [np.frombuffer(window.Shared_query(p)[0], np.uint8) for p in range(self.size)]
        memory[self.rank][:] = 0  # no signal yet; the first write puts a page near this rank's core
        window.Sync()
        comm.Barrier()
        return memory, window.Sync

    def abort(self):
        """Ends all ranks of all groups. May be called from any thread. Does not return."""
        end_all(self._mpi.COMM_WORLD)

    def _parts(self, data):
        """Returns a list of views: the parts of a message. The last part is shorter than
        part_bytes."""
        size = self._part_bytes
        return [data[i : i + size] for i in range(0, len(data) + 1, size)]

    def _explain(self, error, src, expected):
        """Returns the exception that the caller must raise. It is a SizeMismatch if the message was
        too long for its buffer. Otherwise it is `error`."""
        if error.Get_error_class() == self._mpi.ERR_TRUNCATE:
            return size_mismatch(self.rank, src, expected, "more")
        return error


class _Sends(Request):
    """A send. It has the requests of all parts of the message, and keeps the bytes of the message
    alive."""

    def __init__(self, requests, data, longest_nap):
        self._requests, self._data, self._longest_nap = requests, data, longest_nap

    def wait(self):
        for request in self._requests:
            _wait(request, self._longest_nap)
        self._data = None


class _Receives(Request):
    """A receive. It has the requests of all parts of the message."""

    def __init__(self, transport, into, room, src, requests, tag, longest_nap):
        self._transport, self._into, self._room, self._src = transport, into, room, src
        self._requests, self._tag, self._longest_nap = requests, tag, longest_nap

    def wait(self):
        t, mpi = self._transport, self._transport._mpi
        if self._room is None:
            return
        status = mpi.Status()
        got = 0
        for i, request in enumerate(self._requests):
            try:
                _wait(request, self._longest_nap, status)
            except mpi.Exception as error:
                t._check_tag(self._src, self._tag, status)
                raise t._explain(error, self._src, len(self._room)) from None
            t._check_tag(self._src, self._tag, status)
            n_bytes = status.Get_count(mpi.BYTE)
            got += n_bytes
            if n_bytes < t._part_bytes and (i + 1 < len(self._requests) or got != len(self._room)):
                raise size_mismatch(t.rank, self._src, len(self._room), got)
        if got != len(self._room):  # the last part is full, so the message is longer
            raise size_mismatch(t.rank, self._src, len(self._room), "more")
        if not self._into.flags.c_contiguous:
            self._into[...] = self._room.view(self._into.dtype).reshape(self._into.shape)
        self._room = None

    def __del__(self):
        if self._room is not None:
            self._transport._held.spoiled = True


def _wait(request, longest_nap, status=None):
    """Waits until the request is done.

    longest_nap: the longest sleep in seconds. 0 is for collectives. All ranks begin a collective at
    about the same time, so MPI checks the request again and again, without a sleep.

    longest_nap > 0 is for other calls and for the background, where a wait may be long. After 0.1
    ms this function sleeps between two checks. It sleeps for a tenth of the time that it has
    waited, but not longer than longest_nap. Other work can use the core during the sleep.
    Examples are the backward pass of this rank, and the pipeline stage that must send the message.
    """
    if not longest_nap:
        return request.Wait(status)
    start = time.perf_counter()
    while not request.Test(status):
        if (waited := time.perf_counter() - start) > 1e-4:
            time.sleep(min(waited / 10, longest_nap))


class _Thread:
    """A function that runs in its own thread. wait() returns its result or raises its error."""

    def __init__(self, fn, args):
        self._future = Future()
        # A daemon thread does not keep a failed process alive.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._run, fn, args), daemon=True).start()

    def _run(self, fn, args):
        try:
            self._future.set_result(fn(*args))
        except BaseException as error:
            self._future.set_exception(error)

    def wait(self):
        return self._future.result()


def _as_bytes(t, array):
    """Returns the array's bytes as flat uint8: a view if the array is contiguous, otherwise a copy.
    """
    check_array(t, array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
