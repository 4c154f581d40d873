"""The transport: what an algorithm may ask of the network.

A collective is a plain function of a transport and an array, such as `ring.all_reduce(t, x)`, built
on `isend` and `irecv`. There are two transports: `comm.world()` moves bytes between processes;
`sim.simulate(n, fn)` runs n ranks in one process with a modelled clock. The same function runs on
both. A Wrapper is a transport around another one. All keep these rules:

1. Bytes are sent, not numbers. The dtype is not sent: both sides must know it, and only the number
   of bytes is checked (a receive of another size raises `SizeMismatch`). So float16 or bool need no
   MPI datatype, and the precision of every sum is visible in our own code.
2. Messages from one rank to another with one tag arrive in the order sent, and match receives in
   the order posted. Different tags are independent.
3. Do not touch a buffer between `isend` or `irecv` and the return of the request's `wait()`; call
   `wait()` for every request. A send may complete before it is received, or may not: an algorithm
   in which all ranks `send` first and `recv` second is wrong (exercise 07b), `sendrecv` is right.
4. Arrays may be of any dtype but object, of any shape, not contiguous (then a copy is made). They
   are NumPy's or, on a GPU, CuPy's (staging.py).
5. A group is a transport: `t.subgroup(ranks)`. Its messages never mix with its parent's, so
   `t.subgroup(range(t.size))` is a duplicate on which a second task may communicate meanwhile.
6. `rank` and `size` are in *this* group; `ranks[i]` is the world rank of rank i.

Test: tests/comm/transport/test_protocol.py   Tutorial: tutorials/07_ring.py
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import library_of
from minidl.comm.labels import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from minidl.comm.transport.background import Job


class Request(ABC):
    """A send or receive that has begun."""

    @abstractmethod
    def wait(self):
        """Block until the buffer may be used again (send) or holds the message (receive)."""


class Then(Request):
    """Requests; when all are done, `last` is called, once."""

    def __init__(self, requests, last):
        self._requests, self._last = requests, last

    def wait(self):
        for request in self._requests:
            request.wait()
        if self._requests:
            self._requests = ()
            self._last()


class Transport(ABC):
    """One rank's connection to its group. See the rules above.

    rank, size   this rank and the number of ranks in this group
    world_rank   this rank in the outermost group
    ranks        world rank of every rank of this group
    library      the MPI that moves the bytes, with its version, or "simulator"
    simulated    whether the ranks share a process and a modelled clock
    cuda_aware   whether it sends device memory itself; else staging.py takes it to the host
    longest_nap  seconds between two looks for a message that may be long in coming; 0: no pause"""

    rank: int
    size: int
    world_rank: int
    ranks: tuple
    simulated: bool
    library: str
    cuda_aware = False
    longest_nap = 0
    _background = None  # until in_background() makes one
    _scratch = np.empty(0, np.uint8)  # until scratch() gives this transport its own

    @property
    def innermost(self):
        """The transport inside all wrappers."""
        return self

    def __deepcopy__(self, memo):
        """Itself: a copy of a model that is divided over ranks is divided over the same ranks."""
        return self

    @abstractmethod
    def isend(self, array: np.ndarray, dst: int, tag: int = 0) -> Request:
        """Start sending `array` to rank dst; returns a Request."""

    @abstractmethod
    def irecv(self, into: np.ndarray, src: int, tag: int = 0) -> Request:
        """Start receiving into.nbytes bytes from rank src into `into`; returns a Request."""

    @abstractmethod
    def recv_any(self, tag: int = 0) -> tuple[int, np.ndarray]:
        """Receive the next message from anybody, of any size: (src, flat uint8 array)."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> Any:
        """The transport of the listed ranks of this group, in that order; None on other ranks.

        All listed ranks must call it, in the same order as their other subgroup calls on this
        transport."""

    @abstractmethod
    def spawn(self, fn, *args):
        """Run `fn(*args)` beside the caller; the handle's wait() gives its result or re-raises.

        A thread under MPI, a greenlet in the simulator; with the caller's context variables."""

    @abstractmethod
    def event(self):
        """An object with set() and wait() for tasks of one rank; like threading.Event."""

    @abstractmethod
    def time(self) -> float:
        """Seconds since some fixed moment: measured under MPI, modelled in the simulator."""

    def pause(self, seconds: float) -> None:
        """Let others run for so long."""
        time.sleep(seconds)

    def compute(self, seconds: float) -> None:  # noqa: B027  nothing to do is the right default
        """Tell a modelled clock how long work took; on a measured clock nothing happens."""

    def stepped(self) -> None:  # noqa: B027
        """Tell a Watch that a training step has ended: it names ranks that compute longer than the
        others (stragglers.py)."""

    def entering(self, fn, args, kwargs):
        """Called before a collective `fn(t, *args, **kwargs)` that no other collective calls.

        Returns what was sent to compare the ranks' calls: (peer, bytes) pairs."""
        return ()

    def together(self, fn, chunk, args):
        """Do `fn(t, chunk, *args)`, a loop in which all ranks do the same, for all ranks at once.

        Returns what this rank sent and received (lockstep.Moved); None: do it by yourself."""
        return None

    @cached_property
    def uploads(self):
        """(event, pinned arrays) of copies to a GPU that may be under way: staging.py."""
        held = deque()
        weakref.finalize(self, _finish, held)
        return held

    def scratch(self, n_elems, dtype, like=None):
        """An uninitialised 1-d work array, the same memory on every call: for one task at a time.

        It lives as long as this transport: a ring with new memory for every call would spend a
        fifth of its time in page faults (64 MiB, 2 ranks). like: an array in whose memory it is to
        be; on a GPU CuPy's pool keeps it for the next call."""
        dtype = np.dtype(dtype)
        if like is not None and not isinstance(like, np.ndarray):
            return library_of(like).empty(n_elems, dtype)
        if self._scratch.nbytes < n_elems * dtype.itemsize:
            self._scratch = np.empty(n_elems * dtype.itemsize, np.uint8)
        return self._scratch[: n_elems * dtype.itemsize].view(dtype)

    def shared(self, n_bytes):
        """A window of n_bytes on every rank that all ranks see (window.py), the same on every call.

        All ranks must call it. For one task at a time, as `scratch`. Raises window.NoSharedMemory
        on all ranks where some do not share memory. If threads of a rank use several windows, let
        one thread make them: Open MPI can hang when two are made at once."""
        raise NotImplementedError(f"rank {self.rank}: {type(self).__name__} has no shared windows")

    def send(self, array: np.ndarray, dst: int, tag: int = 0) -> None:
        """Send and wait. May block until the receive is posted (rule 3)."""
        self.isend(array, dst, tag).wait()

    def recv(self, into: np.ndarray, src: int, tag: int = 0) -> np.ndarray:
        """Receive into `into`, wait, return it."""
        self.irecv(into, src, tag).wait()
        return into

    def sendrecv(self, array: np.ndarray, dst: int, into: np.ndarray, src: int,
                 tag: int = 0) -> np.ndarray:
        """Send `array` to dst while receiving `into` from src; returns `into`."""
        # The receive first, so that a large message from src need not wait for it.
        incoming = self.irecv(into, src, tag)
        self.isend(array, dst, tag).wait()
        incoming.wait()
        return into

    def in_background(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Queue `fn(duplicate of this transport, *args)` on one background task; returns a Job.

        All ranks must queue the same calls in the same order."""
        if self._background is None:
            from minidl.comm.transport.background import Background  # here: it imports this file

            self._background = Background(self)
        return self._background.submit(fn, *args)

    def named(self, label):
        """`with t.named(label):` labels the messages of this block in ledgers and errors; of nested
        labels the outermost counts."""
        return named(label)

    def __repr__(self):
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, world ranks {self.ranks})"


def _finish(uploads):
    for event, _ in uploads:
        event.synchronize()


def _pass_on(name):
    """A method that calls the method of this name of the transport inside."""

    def method(self, *args, **options):
        return getattr(self.inner, name)(*args, **options)

    return method


class Wrapper(Transport):
    """A transport around another, `inner`: passes on every call that a subclass does not change."""

    def __init__(self, inner):
        self.inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.world_rank, self.ranks = inner.world_rank, inner.ranks
        self.simulated, self.library = inner.simulated, inner.library

    @property
    def innermost(self):
        return self.inner.innermost

    @property
    def cuda_aware(self):
        return self.inner.cuda_aware

    isend, irecv, recv_any = _pass_on("isend"), _pass_on("irecv"), _pass_on("recv_any")
    send, sendrecv = _pass_on("send"), _pass_on("sendrecv")
    spawn, event, entering = _pass_on("spawn"), _pass_on("event"), _pass_on("entering")
    time, compute, pause = _pass_on("time"), _pass_on("compute"), _pass_on("pause")
    scratch, shared = _pass_on("scratch"), _pass_on("shared")
    stepped = _pass_on("stepped")

    def subgroup(self, ranks):
        inner = self.inner.subgroup(ranks)
        return None if inner is None else self.around(inner)

    def around(self, inner):
        """This wrapper for a subgroup's transport."""
        return type(self)(inner)
