"""The transport: the interface between an algorithm and the network.

A collective is a plain function of a transport and an array, such as `ring.all_reduce(t, x)`. It is
built on `isend` and `irecv`. There are two transports. The transport of `comm.world()` sends bytes
between processes. `sim.simulate(n, fn)` runs n ranks in one process with a modelled clock. The same
function runs on both transports. A Wrapper is a transport around another transport. All transports
keep these rules:

1. Bytes are sent, not numbers. The dtype is not sent, so both sides must know it. The receiver
   checks only the number of bytes, and raises `SizeMismatch` for another number. So float16 and
   bool need no MPI datatype. MPI adds no numbers, so minidl's code shows the precision of every
   sum.
2. Messages from one rank to another with the same tag keep their order. The first send matches the
   first receive, the second send matches the second receive, and so on. Different tags are
   independent.
3. After `isend` or `irecv`, do not read or write the buffer until the request's `wait()` has
   returned. Call `wait()` for every request. A send may wait until the message is received. So an
   algorithm in which all ranks first `send` and then `recv` is wrong (exercise 07b). `sendrecv` is
   right.
4. Arrays may have any dtype except object, and any shape. If an array is not contiguous, the
   transport makes a copy. Arrays are NumPy arrays, or CuPy arrays on a GPU (staging.py).
5. A group is a transport. `t.subgroup(ranks)` makes a group. Messages of a group never mix with
   messages of its parent. So `t.subgroup(range(t.size))` is a duplicate of t, and a second task may
   use it at the same time as t.
6. `rank` and `size` are for *this* group. `ranks[i]` is the world rank of rank i.

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
        """For a send, waits until the buffer may be used again. For a receive, waits until the
        buffer holds the message."""


class Then(Request):
    """A Request that consists of several requests. When all these requests are done, wait() calls
    the function `last`, once."""

    def __init__(self, requests, last):
        self._requests, self._last = requests, last

    def wait(self):
        for request in self._requests:
            request.wait()
        if self._requests:
            self._requests = ()
            self._last()


class Transport(ABC):
    """One rank's connection to its group. For the rules see the top of this file.

    rank, size   this rank and the number of ranks in this group
    world_rank   this rank in the outermost group
    ranks        the world rank of every rank of this group
    library      the MPI that moves the bytes, with its version, or "simulator"
    simulated    True if the ranks share a process and a modelled clock
    cuda_aware   True if the transport sends device memory itself; else staging.py copies the memory
                 to the host
    longest_nap  the longest sleep, in seconds, during a wait for a message. 0 means that the
                 transport chooses (mpi.py)"""

    rank: int
    size: int
    world_rank: int
    ranks: tuple
    simulated: bool
    library: str
    cuda_aware = False
    longest_nap = 0
    _background = None  # None until in_background() makes a Background
    _scratch = np.empty(0, np.uint8)  # empty until scratch() allocates memory

    @property
    def innermost(self):
        """The transport inside all Wrappers, or this transport if it is no Wrapper."""
        return self

    def __deepcopy__(self, memo):
        """Returns this transport itself, not a copy. So if a model uses this group, a deep copy of
        the model uses the same group."""
        return self

    @abstractmethod
    def isend(self, array: np.ndarray, dst: int, tag: int = 0) -> Request:
        """Starts to send `array` to rank dst. Returns a Request."""

    @abstractmethod
    def irecv(self, into: np.ndarray, src: int, tag: int = 0) -> Request:
        """Starts to receive into.nbytes bytes from rank src into `into`. Returns a Request. Its
        wait() raises SizeMismatch for a message of another size."""

    @abstractmethod
    def recv_any(self, tag: int = 0) -> tuple[int, np.ndarray]:
        """Receives the next message with this tag, from any rank, of any size. Returns (src, flat
        uint8 array)."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> Any:
        """Returns the transport of the listed ranks of this group, in this order. Returns None on
        the other ranks.

        All listed ranks must call this method. They must make their subgroup calls on this
        transport in the same order."""

    @abstractmethod
    def spawn(self, fn, *args):
        """Runs `fn(*args)` at the same time as the caller. Returns a handle: its wait() returns the
        result of fn, or raises its error.

        The task is a thread under MPI, a greenlet in the simulator. It has a copy of the caller's
        context variables."""

    @abstractmethod
    def event(self):
        """Returns a new event. Like threading.Event, it has the methods set(), is_set() and wait().
        Only tasks of this rank can use it."""

    @abstractmethod
    def time(self) -> float:
        """Returns the seconds since a fixed moment. They are measured under MPI, and modelled in
        the simulator."""

    def pause(self, seconds: float) -> None:
        """Sleeps for `seconds`, so that other tasks run."""
        time.sleep(seconds)

    def compute(self, seconds: float) -> None:  # noqa: B027  doing nothing is the right default
        """Adds `seconds` of work to a modelled clock. Does nothing if the clock is a real clock."""

    def stepped(self) -> None:  # noqa: B027
        """Tells a Watch that a training step has ended. So the Watch can find ranks that compute
        longer than the others (stragglers.py)."""

    def entering(self, fn, args, kwargs):
        """`@collective` calls this method before `fn(t, *args, **kwargs)`, unless another
        collective calls fn. A subclass may compare the ranks' calls here.

        Returns the messages that were sent for the comparison, as pairs (peer, bytes)."""
        return ()

    def together(self, fn, chunk, args):
        """Tries to run the loop `fn(t, chunk, *args)` once for all ranks (lockstep.py).

        Returns lockstep.Moved, the number of bytes and messages that this rank sent and received.
        Returns None if this rank must run the loop itself."""
        return None

    @cached_property
    def uploads(self):
        """A deque. It has an entry (event, pinned arrays) for each copy to a GPU, if the copy may
        still be running. See staging.keep."""
        held = deque()
        weakref.finalize(self, _finish, held)
        return held

    def scratch(self, n_elems, dtype, like=None):
        """Returns an uninitialised 1-d work array of n_elems. Every call returns the same memory,
        so only one task may use it at a time.

        The transport keeps this memory. Example: a ring of 2 ranks sums 64 MiB. With new memory for
        every call, the ring spends a fifth of its time in page faults.

        like: if `like` is a device array, the work array is on the same device, and CuPy's pool
        keeps the memory for the next call."""
        dtype = np.dtype(dtype)
        if like is not None and not isinstance(like, np.ndarray):
            return library_of(like).empty(n_elems, dtype)
        if self._scratch.nbytes < n_elems * dtype.itemsize:
            self._scratch = np.empty(n_elems * dtype.itemsize, np.uint8)
        return self._scratch[: n_elems * dtype.itemsize].view(dtype)

    def shared(self, n_bytes):
        """Returns a window: n_bytes of memory on every rank, which all ranks can read (window.py).
        Calls with the same n_bytes return the same window.

        All ranks must call shared(). Only one task of a rank may use the window at a time. Raises
        window.NoSharedMemory on all ranks if some ranks do not share memory. If threads of a rank
        use several windows, let one thread make all the windows. Otherwise Open MPI can hang."""
        raise NotImplementedError(f"rank {self.rank}: {type(self).__name__} has no shared windows")

    def send(self, array: np.ndarray, dst: int, tag: int = 0) -> None:
        """Sends, and waits until the buffer may be used again. This wait may last until the other
        rank receives (rule 3 at the top of this file)."""
        self.isend(array, dst, tag).wait()

    def recv(self, into: np.ndarray, src: int, tag: int = 0) -> np.ndarray:
        """Receives into.nbytes bytes from rank src into `into`, and waits. Returns `into`."""
        self.irecv(into, src, tag).wait()
        return into

    def sendrecv(self, array: np.ndarray, dst: int, into: np.ndarray, src: int,
                 tag: int = 0) -> np.ndarray:
        """Sends `array` to dst and receives `into` from src at the same time. Returns `into`."""
        # Post the receive first, so that a large message from src can start at once.
        incoming = self.irecv(into, src, tag)
        self.isend(array, dst, tag).wait()
        incoming.wait()
        return into

    def in_background(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Queues `fn(t, *args)` for the background task of this rank. There t is a duplicate of
        this transport. Returns a Job at once.

        All ranks must queue the same calls in the same order."""
        if self._background is None:
            # Imported here, because background.py imports this file.
            from minidl.comm.transport.background import Background

            self._background = Background(self)
        return self._background.submit(fn, *args)

    def named(self, label):
        """`with t.named(label):` labels the messages of this block in ledgers and errors. If labels
        are nested, the messages get the outermost label."""
        return named(label)

    def __repr__(self):
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, world ranks {self.ranks})"


def _finish(uploads):
    for event, _ in uploads:
        event.synchronize()


def _pass_on(name):
    """Returns a method that calls the method `name` of `inner`, the transport inside a Wrapper."""

    def method(self, *args, **options):
        return getattr(self.inner, name)(*args, **options)

    return method


class Wrapper(Transport):
    """A transport around another transport, `inner`. Its methods call the same methods of `inner`,
    unless a subclass overrides them."""

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
        """inner: the transport of a subgroup. Returns a Wrapper of this class around `inner`."""
        return type(self)(inner)
