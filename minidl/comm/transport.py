"""The transport: what an algorithm may ask of the network.

A collective in this package is a plain function of a transport and an array, such as
`ring.all_reduce(t, x)`, built on two calls: `isend` and `irecv`. There are two transports:
`mpi.world()` moves bytes between processes; `sim.simulate(n, fn)` runs n ranks in one process with
a modelled clock. The same function runs on both.

Rules, kept by every transport and relied upon by every algorithm:

1. Bytes move, not numbers. The dtype is not carried: both sides must agree on it, and only the byte
   count is checked (a receive of another size raises `SizeMismatch`). So float16 or bool need no
   MPI datatype, and the precision of every sum is visible in our own code.
2. Messages from one rank to another with one tag arrive in the order sent, and match receives in
   the order posted. Different tags are independent.
3. A buffer belongs to the transport from `isend`/`irecv` until the request's `wait()` returns.
   Every request must be waited for. A send may complete before it is received, or may not: an
   algorithm in which all ranks `send` first and `recv` second is wrong (exercise 06b), `sendrecv`
   is right.
4. Arrays may be of any dtype but object, of any shape, not contiguous (then a copy is made). They
   are NumPy's.
5. A group is a transport: `t.subgroup(ranks)`. Its messages never mix with its parent's, so
   `t.subgroup(range(t.size))` is a duplicate on which a second task may communicate meanwhile.
6. `rank` and `size` are in *this* group; `ranks[i]` is the world rank of rank i.

Test: tests/comm/test_transport.py   Tutorial: tutorials/06_ring.py
"""

import contextlib
import contextvars
import functools
from abc import ABC, abstractmethod

import numpy as np

# One per thread and per greenlet, so a background task's are its own.
_label = contextvars.ContextVar("label")
_inside = contextvars.ContextVar("inside a collective")


class SizeMismatch(ValueError):
    """A message had another byte count than the receive that it matched."""


class Request(ABC):
    """A send or receive in flight."""

    @abstractmethod
    def wait(self):
        """Block until the buffer may be used again (send) or holds the message (receive)."""


class Transport(ABC):
    """One rank's connection to its group. See the rules above.

    rank, size   this rank and the number of ranks in this group
    world_rank   this rank in the outermost group
    ranks        world rank of every rank of this group
    simulated    whether the ranks share a process and a modelled clock
    library      the MPI that moves the bytes, with its version, or "simulator"
    """

    rank: int
    size: int
    world_rank: int
    ranks: tuple
    simulated: bool
    library: str
    _scratch = np.empty(0, np.uint8)  # until scratch() gives this transport its own

    @property
    def innermost(self):
        """The transport inside all wrappers."""
        return self

    @abstractmethod
    def isend(self, array, dst, tag=0):
        """Start sending `array` to rank dst; returns a Request."""

    @abstractmethod
    def irecv(self, out, src, tag=0):
        """Start receiving out.nbytes bytes from rank src into `out`; returns a Request."""

    @abstractmethod
    def recv_any(self, tag=0):
        """Receive the next message from anybody, of any size: (src, flat uint8 array)."""

    @abstractmethod
    def subgroup(self, ranks):
        """The transport of the listed ranks of this group, in that order; None on other ranks.

        All listed ranks must call it, in the same order as their other subgroup calls on this
        transport.
        """

    @abstractmethod
    def spawn(self, fn, *args):
        """Run `fn(*args)` beside the caller; the handle's wait() gives its result or re-raises.

        The caller's context variables are copied. A thread under MPI, a greenlet in the simulator.
        """

    @abstractmethod
    def event(self):
        """An object with set() and wait() for tasks of one rank; like threading.Event."""

    @abstractmethod
    def time(self):
        """Seconds since some fixed moment: measured under MPI, modelled in the simulator."""

    def compute(self, seconds):  # noqa: B027  nothing to do is the right default
        """Tell a modelled clock that work took so long; measured clocks know, nothing happens."""

    def entering(self, fn, args, kwargs):  # noqa: B027  nothing to do is the right default
        """Called before a collective `fn(t, *args, **kwargs)` that no other collective calls."""

    def scratch(self, n_elems, dtype):
        """An uninitialised 1-d work array, the same memory on every call: one user at a time.

        It grows to the largest request and lives as long as this transport: a ring that took fresh
        memory for every call would spend a fifth of its time in page faults (64 MiB, 2 ranks).
        """
        dtype = np.dtype(dtype)
        if self._scratch.nbytes < n_elems * dtype.itemsize:
            self._scratch = np.empty(n_elems * dtype.itemsize, np.uint8)
        return self._scratch[: n_elems * dtype.itemsize].view(dtype)

    def shared(self, n_bytes):
        """A window of n_bytes on every rank that all ranks see (window.py), the same on every call.

        All ranks must call it. One user at a time, as for `scratch`. Raises window.NoSharedMemory,
        on all ranks, where some do not share memory. Where threads of a rank use several windows,
        let one thread make them: Open MPI can hang when two windows are made at once.
        """
        raise NotImplementedError(f"rank {self.rank}: {type(self).__name__} has no shared windows")

    def send(self, array, dst, tag=0):
        """Send and wait. May block until the receive is posted (rule 3)."""
        self.isend(array, dst, tag).wait()

    def recv(self, out, src, tag=0):
        """Receive into `out`, wait, return it."""
        self.irecv(out, src, tag).wait()
        return out

    def sendrecv(self, out, dst, into, src, tag=0):
        """Send `out` to dst while receiving `into` from src; returns `into`."""
        # The receive goes first, so that a large message from the left finds its buffer waiting.
        incoming = self.irecv(into, src, tag)
        self.isend(out, dst, tag).wait()
        incoming.wait()
        return into

    @contextlib.contextmanager
    def named(self, label):
        """Label the messages of this block for ledgers and errors; the outermost label wins."""
        if _label.get(None) is not None:
            yield
            return
        token = _label.set(label)
        try:
            yield
        finally:
            _label.reset(token)

    def __repr__(self):
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, world ranks {self.ranks})"


class Wrapper(Transport):
    """A transport around another, `inner`: a subclass changes what it needs, the rest passes on."""

    def __init__(self, inner):
        self.inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.world_rank, self.ranks = inner.world_rank, inner.ranks
        self.simulated, self.library = inner.simulated, inner.library

    @property
    def innermost(self):
        return self.inner.innermost

    def isend(self, array, dst, tag=0):
        return self.inner.isend(array, dst, tag)

    def irecv(self, out, src, tag=0):
        return self.inner.irecv(out, src, tag)

    def send(self, array, dst, tag=0):
        self.inner.send(array, dst, tag)

    def sendrecv(self, out, dst, into, src, tag=0):
        return self.inner.sendrecv(out, dst, into, src, tag)

    def recv_any(self, tag=0):
        return self.inner.recv_any(tag)

    def subgroup(self, ranks):
        inner = self.inner.subgroup(ranks)
        return None if inner is None else self.around(inner)

    def around(self, inner):
        """This wrapper for a subgroup's transport."""
        return type(self)(inner)

    def spawn(self, fn, *args):
        return self.inner.spawn(fn, *args)

    def event(self):
        return self.inner.event()

    def time(self):
        return self.inner.time()

    def compute(self, seconds):
        self.inner.compute(seconds)

    def entering(self, fn, args, kwargs):
        self.inner.entering(fn, args, kwargs)

    def scratch(self, n_elems, dtype):
        return self.inner.scratch(n_elems, dtype)

    def shared(self, n_bytes):
        return self.inner.shared(n_bytes)


def collective(fn=None, *, own_args=(), own_rows=()):
    """Decorator: label the messages of `fn(t, ...)` 'file.function', unless a caller has.

    A collective that no other one calls is announced to the transport: `t.entering`. All ranks must
    pass the same arguments (of arrays the same dtype and shape); watch.py checks that, except for

    own_args   names of arguments that may differ, such as a buffer that the root alone has
    own_rows   names of arrays whose first axis may differ
    """
    if fn is None:
        return functools.partial(collective, own_args=own_args, own_rows=own_rows)
    fn.own_args, fn.own_rows = own_args, own_rows
    label = label_of(fn)

    @functools.wraps(fn)
    def labelled(t, *args, **kwargs):
        if _inside.get(False):
            return fn(t, *args, **kwargs)
        token = _inside.set(True)
        # As `with t.named(label)`, which takes 2 us: an all-reduce of a few bytes takes ten.
        named = None if _label.get(None) is not None else _label.set(label)
        try:
            t.entering(fn, args, kwargs)
            return fn(t, *args, **kwargs)
        finally:
            _inside.reset(token)
            if named is not None:
                _label.reset(named)

    return labelled


def label_of(fn):
    """'ring.all_reduce': file and name of a function."""
    return f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}"


def in_collective():
    """Whether this task is inside a collective."""
    return _inside.get(False)


def current_label():
    """The label of the running collective, or 'point-to-point'."""
    return _label.get(None) or "point-to-point"


def size_mismatch(rank, src, expected, got):
    """The error for a message of `got` bytes (an int, or 'more') where `expected` were wanted."""
    label = _label.get(None)
    if label is None:
        what = "recv needs a buffer of the message's size"
        remedy = "Do both sides agree on shape and dtype?"
    else:
        what = f"{label} needs the same size on all ranks"
        remedy = "Unequal last batch?"
    return SizeMismatch(
        f"rank {rank}: {what}; expected {expected} bytes from rank {src}, got {got}. {remedy}"
    )


def check_peer(rank, size, peer, role):
    """Raise unless `peer` is a rank of the group."""
    if not 0 <= peer < size:
        raise ValueError(
            f"rank {rank}: {role} must be a rank of this group, 0 to {size - 1}; got {peer}"
        )


def check_ranks(rank, size, ranks):
    """The subgroup's ranks as a tuple; raise unless they are distinct ranks of the group."""
    ranks = tuple(int(r) for r in ranks)
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(
            f"rank {rank}: subgroup needs one or more distinct ranks, each 0 to {size - 1}; "
            f"got {list(ranks)}"
        )
    return ranks


def check_array(rank, array):
    """Raise unless `array` is a NumPy array of plain bytes."""
    if not isinstance(array, np.ndarray):
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(
            f"rank {rank}: the transport moves host arrays (numpy.ndarray); got {kind}. "
            "Sum device arrays with device.all_reduce, or copy them first (cupy.asnumpy)."
        )
    if array.dtype.hasobject:
        raise TypeError(
            f"rank {rank}: an array of Python objects has no bytes to send; got {array.dtype}. "
            "Convert it to numbers, or send np.frombuffer(pickle.dumps(...), np.uint8)."
        )
