"""Activation offload: what forward saves waits in the host's memory, and is back before its use.

    forward    device ── out ──► host     a saved array leaves as soon as its function has run
    backward   device ◄── in ─── host     and comes back while `ahead` others before it are used

    with offload(ahead=2) as host:
        loss = F.cross_entropy(model(x), y)
    loss.backward()                       host.log, host.peak_bytes, host.waited_s

The other way to give memory back is recompute.py: this one costs traffic instead of computation,
every saved byte once out and once in. Copies are bits, so gradients are the same to the bit. Around
recomputed segments only their inputs are left to move, and little traffic remains.

How: the Host is one of the Mode's packers (saved.py): it puts a Parcel in a saved array's place,
whose `array()` gives the array back. An array saved by several functions travels once.
Parameters and arrays from outside stay, since their owner holds them anyway.

CuPy's arrays travel on a stream of their own, from and to pinned memory (host_memory.py). The host
runs ahead; each stream waits for events of the other:

    compute stream   f0, e0 | f1, e1 | f2, wait o0 | f3, in a0's memory ... wait i1 | backward 1
    copy stream           wait e0, out a0, o0 | wait e1, out a1, o1 ...  in a1, i1 | in a0, i0

With NumPy both memories are the same chips: two accounts. Where a speed is given, an array has
arrived only after bytes / bytes_per_s seconds, one after the other, and is held at its start until
then: that shows when the way hides behind computation.
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
from minidl.memory.host_memory import CopyStream, pinned
from minidl.mode import current, running

IN_FLIGHT = 2  # arrays on their way out that the device still holds; then forward waits


@contextmanager
def offload(ahead=1, min_bytes=1024, bytes_per_s=None):
    """Inside the block saved arrays of at least min_bytes go to the host. Gives the Host.

    ahead:        how many arrays before the one in use are on their way back.
    bytes_per_s:  of a modelled link between NumPy's two memories, which works beside the
                  computation; None: no time at all. Between a GPU and the host is a real one."""
    host = Host(ahead, min_bytes, bytes_per_s)
    with running(packers=(*current().packers, host.pack)):
        yield host


class Host:
    """The host's memory, and the link to it.

    log         [("out" or "in", number of the parcel, bytes)], in the order of the link
    held_bytes  now in the host's memory; peak_bytes: the most
    waited_s    time in which NumPy's computation waited for the link; a GPU's waits unseen
    """

    def __init__(self, ahead, min_bytes, bytes_per_s):
        self.ahead, self.min_bytes, self.bytes_per_s = ahead, min_bytes, bytes_per_s
        self.log, self.held_bytes, self.peak_bytes, self.waited_s = [], 0, 0, 0.0
        self.parcels = []  # weak references: a parcel lives as long as a node that saved it
        self._known = {}  # (id of buffer, place in it) -> weak references to buffer and parcel
        self._leaving = deque()
        self._streams = {}  # name of a GPU -> CopyStream
        self._worker = None
        if bytes_per_s is not None:
            self._worker = ThreadPoolExecutor(1, "minidl-offload")
            weakref.finalize(self, self._worker.shutdown, wait=False)

    def pack(self, node, held, inputs, outputs):
        """A packer: a parcel in the place of a large array that forward made."""
        if current().around is not None:  # inside a recomputed segment: nothing is kept for long
            return None
        if not hasattr(held, "base") or held.nbytes < self.min_bytes:
            return None
        for x in inputs:
            if getattr(x, "is_leaf", True):  # its owner holds it anyway
                array = getattr(x, "_data", x)
                if hasattr(array, "base") and backend.buffer_of(array) is backend.buffer_of(held):
                    return None
        return self._parcel(held), Parcel.array

    def _parcel(self, array):
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
            known, parcel = (reference() for reference in self._known[key])
            if known is buffer and parcel is not None:
                return parcel
        parcel = Parcel(self, len(self.parcels), array, xp)
        self.parcels.append(weakref.ref(parcel))
        self._known[key] = weakref.ref(buffer), weakref.ref(parcel)
        self.held_bytes += array.nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        weakref.finalize(parcel, self._freed, array.nbytes)
        self._leaving.append(self.copy("out", parcel.number, parcel.laid(array), parcel.host))
        while len(self._leaving) > IN_FLIGHT:
            self.wait(self._leaving.popleft())
        return parcel

    def _freed(self, n_bytes):
        self.held_bytes -= n_bytes

    def bring(self, number):
        """Start the way back of a parcel and of those that are used after it."""
        while self._leaving:  # forward is over
            self.wait(self._leaving.popleft())
        for i in range(number, max(number - self.ahead, 0) - 1, -1):
            parcel = self.parcels[i]()
            if parcel is not None and parcel.device is None:
                parcel.device = parcel.empty()
                if (ledger := current().ledger) is not None:
                    ledger.note(parcel.device, "activations", "fetched")
                parcel.coming = self.copy("in", i, parcel.host, parcel.laid(parcel.device))

    def copy(self, way, number, source, into):
        """Copy over the link; a Future, or a CopyStream's Copy, whose result() waits for all."""
        self.log.append((way, number, source.nbytes))
        x = into if way == "in" else source
        if (device := backend.device_of(x)) != "cpu":
            if device not in self._streams:
                self._streams[device] = CopyStream(x)
            return self._streams[device].copy(source, into)
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
    """The link is busy for so long; the source is held until then, and not by the queue after."""
    time.sleep(time_s)
    held.clear()


class Parcel:
    """In a node's `_saved` for an array that is in the host's memory."""

    def __init__(self, owner, number, array, xp):
        self.owner, self.number, self.xp = owner, number, xp
        # as it lies in memory, without gaps: matrix products then take the same way
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

    def array(self):
        self.owner.bring(self.number)
        if self.coming is not None:
            self.owner.wait(self.coming)
            self.coming = None
        return self.device
