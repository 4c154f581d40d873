"""Activation offload: what forward saves moves to the host's memory until backward needs it.

    forward    device ── out ──► host     a saved array is copied as soon as its function has run
    backward   device ◄── in ─── host     and copied back while the `ahead` before it are in use

    with offload(ahead=2) as host:
        loss = F.cross_entropy(model(x), y)
    loss.backward()                       host.log, host.peak_bytes, host.waited_s

Where recompute.py (the other way to hold less) computes twice, this copies every saved byte twice,
bit by bit, so gradients are the same to the bit. A recomputed segment moves only its inputs.

How: the Host is one of the Mode's packers (saved.py): it puts a Stored in a saved array's place,
whose `fetch()` gives the array back. An array saved by several functions is copied once. Parameters
and arrays from outside stay: their owner holds them anyway.

CuPy's arrays are copied on a stream of their own, from and to pinned memory (host_memory.py).
Python runs ahead of the GPU; each stream waits for events (e, o, i) of the other:

    compute stream   f0, e0 | f1, e1 | f2, wait o0 | f3, in a0's memory ... wait i1 | backward 1
    copy stream           wait e0, out a0, o0 | wait e1, out a1, o1 ...  in a1, i1 | in a0, i0

With NumPy both memories are the same chips, counted apart. With `bytes_per_s` each copy takes
bytes / bytes_per_s seconds, one after the other: so one sees whether computation hides it.
Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 6.1 (activations to the CPU).
Test: tests/memory/test_offload.py, test_offload_gpu.py
"""

import time
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from minidl import backend
from minidl.cuda.host_memory import copy_stream, pinned
from minidl.mode import current, running

IN_FLIGHT = 2  # arrays being copied out, which the device still holds; then forward waits


@contextmanager
def offload(ahead=1, min_bytes=1024, bytes_per_s=None):
    """Inside the block saved arrays of at least min_bytes go to the host. Gives the Host.
    ahead:        how many arrays before the one in use are being copied back.
    bytes_per_s:  with NumPy, the speed of the modelled link, beside the computation; None: no time
                  at all. With a GPU the link is real."""
    host = Host(ahead, min_bytes, bytes_per_s)
    with running(packers=(*current().packers, host.pack)):
        yield host


class Host:
    """The host's memory, and the link to it.

    log         [("out" or "in", number of the stored array, bytes)], in the order of the link
    held_bytes  now in the host's memory; peak_bytes: the most
    waited_s    time in which NumPy's computation waited for the link; a GPU's is not measured"""

    def __init__(self, ahead, min_bytes, bytes_per_s):
        self.ahead, self.min_bytes, self.bytes_per_s = ahead, min_bytes, bytes_per_s
        self.log, self.held_bytes, self.peak_bytes, self.waited_s = [], 0, 0, 0.0
        self.stored = []  # weak references: a Stored lives as long as a node that saved it
        self._known = {}  # (id of buffer, place in it) -> weak references to buffer and Stored
        self._leaving = deque()
        self._worker = None
        if bytes_per_s is not None:
            self._worker = ThreadPoolExecutor(1, "minidl-offload")
            weakref.finalize(self, self._worker.shutdown, wait=False)

    def pack(self, node, held, inputs, outputs):
        """A packer: a Stored in the place of a large array that forward made."""
        if current().intercept is not None:  # inside a recomputed segment: nothing is kept for long
            return None
        if not hasattr(held, "base") or held.nbytes < self.min_bytes:
            return None
        for x in inputs:
            if getattr(x, "is_leaf", True):  # its owner holds it anyway
                array = backend.array_of(x)
                if hasattr(array, "base") and backend.buffer_of(array) is backend.buffer_of(held):
                    return None
        return self._store(held), Stored.fetch

    def _store(self, array):
        xp = backend.xp_of([array])
        if not isinstance(array, xp.ndarray):
            raise TypeError("activation offload moves NumPy and CuPy arrays; got "
                            f"{type(array).__name__}")
        if xp is not np and self._worker is not None:
            raise ValueError("bytes_per_s models a link between NumPy's two memories, and this "
                             f"array is on {backend.device_of(array)}: leave bytes_per_s out")
        buffer = backend.buffer_of(array)
        key = id(buffer), backend.address(array), array.shape, array.strides, array.dtype
        if key in self._known:
            known, stored = (reference() for reference in self._known[key])
            if known is buffer and stored is not None:
                return stored
        stored = Stored(self, len(self.stored), array, xp)
        self.stored.append(weakref.ref(stored))
        self._known[key] = weakref.ref(buffer), weakref.ref(stored)
        self.held_bytes += array.nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        weakref.finalize(stored, self._freed, array.nbytes)
        self._leaving.append(self.copy("out", stored.number, stored.laid(array), stored.host))
        while len(self._leaving) > IN_FLIGHT:
            self.wait(self._leaving.popleft())
        return stored

    def _freed(self, n_bytes):
        self.held_bytes -= n_bytes

    def bring(self, number):
        """Start to copy back a stored array and those that backward uses after it."""
        while self._leaving:  # forward is over
            self.wait(self._leaving.popleft())
        for i in range(number, max(number - self.ahead, 0) - 1, -1):
            stored = self.stored[i]()
            if stored is not None and stored.device is None:
                stored.device = stored.empty()
                if (ledger := current().ledger) is not None:
                    ledger.note(stored.device, "activations", "fetched")
                stored.coming = self.copy("in", i, stored.host, stored.laid(stored.device))

    def copy(self, way, number, source, into):
        """Copy over the link: a Future or a CopyStream's Copy, whose result() waits for the end."""
        self.log.append((way, number, source.nbytes))
        x = into if way == "in" else source
        if backend.device_of(x) != "cpu":
            return copy_stream(x).copy(source, into)
        np.copyto(into, source)
        if self._worker is not None:
            return self._worker.submit(_travel, [source], source.nbytes / self.bytes_per_s)
        done = Future()
        done.set_result(None)
        return done

    def wait(self, copied):
        start = time.perf_counter()
        copied.result()
        self.waited_s += time.perf_counter() - start


def _travel(held, time_s):
    """The link is busy for that long, and holds the source until then."""
    time.sleep(time_s)
    held.clear()


class Stored:
    """What a node's `_saved` holds in the place of an array that is in the host's memory."""

    def __init__(self, owner, number, array, xp):
        self.owner, self.number, self.xp = owner, number, xp
        # the axes in their order in memory, without gaps: matrix products then round the same
        self.axes = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]))
        self.host = pinned(xp, array.size, array.dtype).reshape(self.laid(array).shape)
        self.device = self.coming = None

    def laid(self, array):
        """A view with the axes in the order of memory."""
        return array.transpose(self.axes)

    def empty(self):
        """New memory on the device, with the shape and the order of axes of the array."""
        laid = self.xp.empty(self.host.shape, self.host.dtype)
        return laid.transpose(np.argsort(self.axes))

    def fetch(self):
        self.owner.bring(self.number)
        if self.coming is not None:
            self.owner.wait(self.coming)
            self.coming = None
        return self.device
