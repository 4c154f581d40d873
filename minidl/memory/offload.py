"""Activation offload: saved arrays move to the host's memory until backward needs them.

    forward    device ── out ──► host     a saved array is copied as soon as its Function has run
    backward   device ◄── in ─── host     the next `ahead` arrays are copied back in advance

    with offload(ahead=2) as host:
        loss = F.cross_entropy(model(x), y)
    loss.backward()                       host.log, host.peak_bytes, host.waited_s

Recompute (recompute.py) also saves memory, but computes a segment twice. Offload copies every saved
byte twice. Copies are exact, so the gradients have the same bits as without offload. If a segment
is recomputed inside an offload block, only the inputs of the segment are copied.

The method `pack` of a Host is a packer (saved.py). It replaces a saved array by a Stored. `fetch()`
of the Stored returns the array. If several Functions save the same array, it is copied once.
Parameters and input data are not copied. Other code holds these arrays on the device anyway, so a
copy frees no memory.

CuPy's arrays are copied on a separate stream, to and from pinned memory (host_memory.py). Python
runs ahead of the GPU, so each stream must wait for events of the other stream. In this picture
Function 0 runs (f0) and saves the array a0. Its events are e0 (f0 has run), o0 (a0 was copied out)
and i0 (a0 was copied back in). The names for Functions 1, 2, ... are made in the same way. `out
a0` copies a0 to the host, and `in a0` copies it back. After o0 the memory of a0 is free, and f3 can
use it:

    compute stream   f0, e0 | f1, e1 | f2, wait o0 | f3 ...              wait i1 | backward 1
    copy stream           wait e0, out a0, o0 | wait e1, out a1, o1 ...  in a1, i1 | in a0, i0

With NumPy, host and device are the same memory. The copies are made, but no memory is saved.
`bytes_per_s` simulates a slow link between device and host. The link makes only one copy at a time,
and a copy takes bytes / bytes_per_s seconds. This shows whether computation hides the copies.
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

# At most this number of copies to the host may be unfinished. Otherwise forward waits, because the
# device holds an array until its copy is finished.
IN_FLIGHT = 2


@contextmanager
def offload(ahead=1, min_bytes=1024, bytes_per_s=None):
    """A `with` block: `with offload() as host:`. If an op in the block saves an array of at least
    min_bytes, this array is moved to the host's memory. host is a Host.

    ahead:        a number of arrays. Backward copies this many arrays back early, before it needs
                  them.
    bytes_per_s:  the speed of a modelled link, which copies while ops compute. If None, copies take
                  no extra time. With a GPU it must be None, because the link is real."""
    host = Host(ahead, min_bytes, bytes_per_s)
    with running(packers=(*current().packers, host.pack)):
        yield host


class Host:
    """The host's memory, and the link between it and the device.

    log         [("out" or "in", number of the stored array, bytes)], in the order of the copies
    held_bytes  the bytes of stored arrays that are in the host's memory now
    peak_bytes  the largest value of held_bytes so far
    waited_s    the seconds in which computation waited for the link. Measured with NumPy only"""

    def __init__(self, ahead, min_bytes, bytes_per_s):
        self.ahead, self.min_bytes, self.bytes_per_s = ahead, min_bytes, bytes_per_s
        self.log, self.held_bytes, self.peak_bytes, self.waited_s = [], 0, 0, 0.0
        self.stored = []  # weak references, because only the nodes should keep a Stored
        # _known: {(id of a buffer, the array's place in the buffer): weak references to the buffer
        # and to the Stored}.
        self._known = {}
        self._leaving = deque()  # copies to the host that may not be finished
        self._worker = None
        if bytes_per_s is not None:
            self._worker = ThreadPoolExecutor(1, "minidl-offload")
            weakref.finalize(self, self._worker.shutdown, wait=False)

    def pack(self, node, held, inputs, outputs):
        """A packer. It moves the array `held`, which the node has saved, to the host's memory. Then
        it returns (a Stored, a function that gets the array back), and the node keeps this pair in
        place of the array. Returns None inside recompute() and if `held` is small. Also returns
        None if `held` shares memory with an input that is a leaf or a NumPy or CuPy array. If
        pack() returns None, the node keeps the array."""
        if current().intercept is not None:  # recompute() frees the arrays of its segment anyway
            return None
        if not hasattr(held, "base") or held.nbytes < self.min_bytes:
            return None
        for x in inputs:
            if getattr(x, "is_leaf", True):  # a leaf keeps its array anyway
                array = backend.array_of(x)
                if hasattr(array, "base") and backend.buffer_of(array) is backend.buffer_of(held):
                    return None
        return self._store(held), Stored.fetch

    def _store(self, array):
        xp = backend.xp_of([array])
        if not isinstance(array, xp.ndarray):
            raise TypeError("offload: wanted a saved array of NumPy or CuPy, which can be moved; "
                            f"got a {type(array).__name__}")
        if xp is not np and self._worker is not None:
            raise ValueError("offload: bytes_per_s simulates the link between device and host, for "
                             f"NumPy arrays only; got an array on {backend.device_of(array)}. "
                             "Leave bytes_per_s out")
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
        """Starts to copy back a stored array, and the `ahead` arrays that backward uses next."""
        while self._leaving:  # waits for the last copies of forward
            self.wait(self._leaving.popleft())
        for i in range(number, max(number - self.ahead, 0) - 1, -1):
            stored = self.stored[i]()
            if stored is not None and stored.device is None:
                stored.device = stored.empty()
                if (ledger := current().ledger) is not None:
                    ledger.note(stored.device, "activations", "fetched")
                stored.coming = self.copy("in", i, stored.host, stored.laid(stored.device))

    def copy(self, way, number, source, into):
        """Starts a copy over the link. way: "out" or "in". Returns a Future, or the Copy of a
        CopyStream. Both have a method result(), which waits for the end of the copy."""
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
    """Keeps the modelled link busy for time_s seconds. Then empties the list `held`, so that the
    source array is freed."""
    time.sleep(time_s)
    held.clear()


class Stored:
    """An entry of a node's `_saved`. It replaces an array that was moved to the host's memory."""

    def __init__(self, owner, number, array, xp):
        self.owner, self.number, self.xp = owner, number, xp
        # The copy keeps the order of the axes in memory. So matrix products give the same bits.
        self.axes = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]))
        self.host = pinned(xp, array.size, array.dtype).reshape(self.laid(array).shape)
        self.device = self.coming = None

    def laid(self, array):
        """Returns a view of the array. The axes of the view are sorted as in memory: the axis with
        the largest stride is first."""
        return array.transpose(self.axes)

    def empty(self):
        """Returns a new array on the device. It has the same shape, and the same order of axes in
        memory, as the original array."""
        laid = self.xp.empty(self.host.shape, self.host.dtype)
        return laid.transpose(np.argsort(self.axes))

    def fetch(self):
        self.owner.bring(self.number)
        if self.coming is not None:
            self.owner.wait(self.coming)
            self.coming = None
        return self.device
