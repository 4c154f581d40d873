"""cupy.cuda.nccl of CuPy 14: ids are bytes, each rank has a GPU, a call runs on its stream.

Ranks are tasks of this process with the same id: threads, or greenlets of minidl's simulator inside
`stand_in.nccl_over(t)`. A call, or a group of calls, waits until all ranks have made theirs. Then
the last rank does the work for all. NCCL may behave like this, and promises no more. If the ranks'
calls do not fit, NCCL hangs or writes to wrong places. Here they raise `Mismatch`."""

import itertools
import threading
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from cupy import _memory, _streams
from cupy._count import launches

available = True
_KINDS = ("int8 uint8 int32 uint32 int64 uint64 float16 float32 float64").split()
(NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64, NCCL_FLOAT16,
 NCCL_FLOAT32, NCCL_FLOAT64) = range(9)
_OPS = np.add, np.multiply, np.maximum, np.minimum
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)

_ids, _worlds = itertools.count(1), {}  # _worlds: {id: its World}
_transport = ContextVar("the simulated rank that calls", default=None)
_changed = threading.Condition()
TIMEOUT_S = 60  # the longest wait of a thread for the other ranks


class Mismatch(RuntimeError):
    """The ranks' calls do not fit, or memory is smaller than a call needs."""


@contextmanager
def nccl_over(t):
    """Inside, NCCL's ranks are simulated ranks. A rank that waits lets the other ranks of t run."""
    token = _transport.set(t)
    try:
        yield
    finally:
        _transport.reset(token)


class World:
    """The ranks with one id. meetings: {number of a call: {rank: its arguments}}."""

    def __init__(self, n):
        self.n, self.counts, self.meetings, self.asleep = n, {}, {}, []

    def meet(self, rank, brings, do):
        """Waits for all ranks. The last one calls do({rank: brings}). Then all continue."""
        number = self.counts[rank] = self.counts.get(rank, -1) + 1
        here = self.meetings.setdefault(number, {})
        here[rank] = brings
        if len(here) == self.n:
            try:
                do(here)
            except RuntimeError as error:
                here["error"] = error
            error = here.get("error")
            here.clear()  # frees the calls' memory
            here |= {"over": True} if error is None else {"over": True, "error": error}
            self._wake()
        else:
            self._wait(lambda: "over" in here)
        if "error" in here:
            raise here["error"]

    def _wait(self, over):
        t = _transport.get()
        if t is None:
            with _changed:
                if not _changed.wait_for(over, TIMEOUT_S):
                    raise Mismatch(f"NCCL: other ranks (of {self.n}) make no call")
            return
        scheduler = t.innermost._scheduler
        while not over():
            self.asleep.append((scheduler, scheduler.current))
            scheduler.block("NCCL")

    def _wake(self):
        with _changed:
            _changed.notify_all()
        while self.asleep:
            scheduler, task = self.asleep.pop(0)
            scheduler.wake(task, task.clock)


def get_unique_id():
    return next(_ids).to_bytes(8, "little") + bytes(range(120))


_depth, _grouped = ContextVar("depth", default=0), ContextVar("calls", default=None)


def groupStart():
    if not _depth.get():
        _grouped.set([])
    _depth.set(_depth.get() + 1)


def groupEnd():
    _depth.set(_depth.get() - 1)
    if _depth.get() == 0 and (calls := _grouped.get()):
        (communicator,) = {call.communicator for call in calls}
        communicator._meet(calls)


class _Call:
    """One call: its name, arguments that must be equal on all ranks, memory to read and write."""

    def __init__(self, communicator, name, alike, count, kind, stream, send=None, receive=None):
        self.communicator, self.name, self.alike = communicator, name, alike
        self.dtype, self.queue = np.dtype(_KINDS[kind]), _streams.queue_of(stream)
        n_bytes = count * self.dtype.itemsize
        self.read, self.written = (self._array(p, n_bytes) for p in (send, receive))

    def _array(self, pointer, n_bytes):
        if pointer is None or not n_bytes:
            return None
        array = _memory.bytes_of(pointer, n_bytes)
        if array is None or array.nbytes < n_bytes:
            raise Mismatch(f"NCCL {self.name}: {n_bytes} bytes at an address where there are "
                           f"{'none' if array is None else array.nbytes}")
        if array._device != self.queue.device:
            raise Mismatch(f"NCCL {self.name}: memory of device {array._device} on a stream of "
                           f"device {self.queue.device}")
        return array

    def values(self):
        return np.empty(0, self.dtype) if self.read is None else (
            self.read._a.view(self.dtype).copy())

    def put(self, values):
        if self.written is not None:
            self.written._a[...] = values.view(np.uint8)


class NcclCommunicator:
    def __init__(self, ndev, commId, rank, config=None):
        if not isinstance(commId, bytes):
            raise TypeError("Argument 'commId' has incorrect type (expected bytes, got "
                            f"{type(commId).__name__})")
        if len(commId) != 128:
            raise ValueError(f"commId length {len(commId)} != 128.")
        self.ndev, self.rank, self._device = ndev, rank, _streams.current_device()
        self._world = _worlds.setdefault(commId, World(ndev))
        self._world.meet(rank, (ndev, self._device), self._check_ranks)

    @staticmethod
    def _check_ranks(here):
        sizes, devices = zip(*here.values())
        if len(set(sizes)) > 1:
            raise Mismatch(f"NCCL: communicators of sizes {sizes}")
        if len(set(devices)) < len(devices):
            raise RuntimeError("NCCL_ERROR_INVALID_USAGE: invalid usage (ranks on one GPU)")

    def _call(self, *args, **options):
        call = _Call(self, *args, **options)
        if _depth.get():
            _grouped.get().append(call)
        else:
            self._meet([call])

    def _meet(self, calls):
        self._world.meet(self.rank, calls, self._do)

    @staticmethod
    def _do(here):
        """Does the calls of all ranks in their order. The sends of one rank to another go to the
        other's receives, also in order."""
        started = []
        with _streams.LOCK:
            for calls in here.values():
                for call in calls:
                    n = call.queue.tick()
                    launches(f"nccl.{call.name}")
                    if call.read is not None:
                        _memory.read(call.read, call.queue, n)
                    if call.written is not None:
                        _memory.wrote(call.written, call.queue, n)
                    started.append(dict(call.queue.clock))
            for calls in here.values():  # a result comes after all earlier work of all ranks
                for call in calls:
                    for clock in started:
                        _streams.join(call.queue.clock, clock)
        sends = {}
        for rank, calls in here.items():
            for call in calls:
                if call.name == "send":
                    sends.setdefault((rank, call.alike), []).append(call.values())
        alike = {rank: [c for c in calls if c.name not in ("send", "recv")]
                 for rank, calls in here.items()}
        for calls in itertools.zip_longest(*alike.values()):
            said = {None if c is None else (c.name, c.alike, c.dtype.name) for c in calls}
            if len(said) > 1:
                raise Mismatch(f"NCCL: the ranks call {sorted(map(str, said))}")
            _collective(dict(zip(alike, calls)))
        for rank, calls in here.items():
            for call in calls:
                if call.name == "recv":
                    found = sends.get((call.alike, rank))
                    if not found or found[0].nbytes != (
                            0 if call.written is None else call.written.nbytes):
                        raise Mismatch(f"NCCL: rank {rank} receives from {call.alike} what it "
                                       "does not send")
                    call.put(found.pop(0))
        if any(sends.values()):
            raise Mismatch("NCCL: a send without a receive")

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        self._call("allReduce", (op, count), count, datatype, stream, sendbuf, recvbuf)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        self._call("reduce", (op, root, count), count, datatype, stream, sendbuf,
                   recvbuf if self.rank == root else None)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        self._call("broadcast", (root, count), count, datatype, stream,
                   sendbuff if self.rank == root else None, recvbuff)

    def send(self, sendbuf, count, datatype, peer, stream):
        self._pair("send", peer, count, datatype, stream, send=sendbuf)

    def recv(self, recvbuf, count, datatype, peer, stream):
        self._pair("recv", peer, count, datatype, stream, receive=recvbuf)

    def _pair(self, name, *args, **options):
        if not _depth.get():
            raise Mismatch(f"NCCL {name} outside of a group: alone it would wait for the other "
                           "side, which waits for its own")
        self._call(name, *args, **options)


def _collective(calls):
    """Does one collective. calls: {rank: its call}."""
    first = next(iter(calls.values()))
    if first.name == "broadcast":
        values = calls[first.alike[0]].values()
    else:  # sums in the order of the ranks and in the arrays' dtype, as NCCL adds float16
        ordered = [calls[rank].values() for rank in sorted(calls)]
        values = ordered[0]
        for other in ordered[1:]:
            values = _OPS[first.alike[0]](values, other)
    for call in calls.values():
        call.put(values)
