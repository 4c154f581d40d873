"""Copies between a GPU's memory and the host's; for NumPy arrays plain copies.

    compute stream   | backward of b | event | backward of a ...
    copy stream                      | wait for the event, copy b to pinned host memory

A GPU can copy while it computes, if the host's memory is pinned (the system may not move it) and
the copy is on a stream of its own. That stream must wait until what it copies has been computed, or
what it overwrites has been read. Who waits for the copy?

    to_host, to_device   the thread that calls them, and not the device     parallel/zero/offload.py
    CopyStream           the compute stream, later, and no thread           memory/offload.py
    SideStream           the same: the work of another thread               parallel/data/bucket.py

CuPy's pool lends freed memory again at once, in the order of the stream on which it was allocated.
So what two streams use is allocated by the thread that computes, and held until its stream has
waited for the other (`join`), or the other's event has happened.

Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
Test: tests/cuda/test_host_memory.py (late copies without a GPU)
"""

import ctypes
import functools
import weakref
from collections import deque

import numpy as np

from minidl.backend import library_of


def pinned(xp, n_elems, dtype):
    """An uninitialised 1-d host array; for a GPU in pinned memory, which the system may not move:
    the GPU copies from and to it while it computes."""
    if xp is np:
        return np.empty(n_elems, dtype)
    memory = xp.cuda.alloc_pinned_memory(max(1, n_elems) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, max(1, n_elems))[:n_elems]


def queue_copy(source, into, stream):
    """into = source when the stream comes to it: one in pinned memory, the other on a GPU, both
    contiguous. Both must live until then."""
    if isinstance(into, np.ndarray):
        source.data.copy_to_host_async(ctypes.c_void_p(into.ctypes.data), into.nbytes, stream)
    else:
        into.data.copy_from_host_async(ctypes.c_void_p(source.ctypes.data), into.nbytes, stream)


def computed(x):
    """What a copy must wait for: the work now on the stream, for a GPU array."""
    if isinstance(x, np.ndarray):
        return None
    with x.device:
        return library_of(x).cuda.get_current_stream().record()


def join(x, event):
    """What follows on x's compute stream comes after the event; None: there is nothing to wait for.
    The host does not wait."""
    if event is not None:
        with x.device:
            library_of(x).cuda.get_current_stream().wait_event(event)


class SideStream:
    """A stream for what another thread does on a GPU, beside the compute stream.

    A thread begins on the null stream, which all threads share: there its work would wait for all
    computation, and all computation for it."""

    def __init__(self):
        self.streams = {}  # number of a device -> stream

    def run(self, event, x, fn, *args):
        """fn(*args), its work on x's device after `event`; the event of its end, for `join`. Nobody
        waits. For NumPy's arrays the event is None, and so is the end."""
        if event is None:
            fn(*args)
            return None
        cuda = library_of(x).cuda
        with x.device as device:
            if device.id not in self.streams:
                self.streams[device.id] = cuda.Stream(non_blocking=True)
            stream, before = self.streams[device.id], cuda.get_current_stream()
            stream.use()
            try:
                stream.wait_event(event)
                fn(*args)
                return stream.record()
            finally:
                before.use()


def to_host(x, out, event, add=False):
    """out = x, or out += x, from the device's memory to the host's; x: contiguous."""
    if not isinstance(x, np.ndarray):
        library = library_of(x)
        host = pinned(library, x.size, x.dtype).reshape(x.shape) if add else out
        with x.device:
            stream = library.cuda.Stream(non_blocking=True)
            _queue(stream, event, x, host)
            stream.synchronize()
        x = host
    if add:
        out += x
    elif x is not out:
        out[...] = x


def to_device(x, out, event):
    """out = x, from the host's memory to the device's."""
    if isinstance(out, np.ndarray):
        out[...] = x
        return
    if not out.flags.c_contiguous:
        raise ValueError(f"a weight of shape {out.shape} and strides {out.strides} is written as "
                         "bytes: make it contiguous before it is offloaded")
    with out.device:
        stream = library_of(out).cuda.Stream(non_blocking=True)
        _queue(stream, event, x, out)
        stream.synchronize()


def _queue(stream, event, source, into):
    """Put `into = source` on the stream, after the event; contiguous, one of them a NumPy array."""
    stream.wait_event(event)
    queue_copy(source, into, stream)


class CopyStream:
    """Copies between a GPU and pinned memory, in order, for which no thread waits."""

    def __init__(self, x):
        with x.device:
            self.stream = library_of(x).cuda.Stream(non_blocking=True)
        self.under_way = deque()  # holds the arrays: their pool may reuse memory that is released
        weakref.finalize(self, _finish, self.stream, self.under_way)

    def copy(self, source, into):
        """into = source, after what is on the compute stream by now; one is in pinned memory."""
        down = isinstance(into, np.ndarray)
        if down:
            source = library_of(source).ascontiguousarray(source)
        x, host = (source, into) if down else (into, source)
        while self.under_way and self.under_way[0].event.done:
            self.under_way.popleft()
        with x.device:
            _queue(self.stream, computed(x), source, into)
            self.under_way.append(Copy(x, host, self.stream.record()))
        return self.under_way[-1]


def copy_stream(x):
    """The CopyStream of x's GPU, the same each time: where one ends, the host waits."""
    return _copy_stream(library_of(x), x.device.id)


@functools.cache
def _copy_stream(library, number):
    with library.cuda.Device(number):
        return CopyStream(library.empty(0, np.uint8))


class Copy:
    """A copy that may not have ended; it holds both arrays."""

    def __init__(self, x, host, event):
        self.x, self.host, self.event = x, host, event

    def result(self):
        """The compute stream waits: what is put there from now on comes after the copy. So the
        device's array may be used or released; the host's is held until the copy has ended."""
        with self.x.device:
            library_of(self.x).cuda.get_current_stream().wait_event(self.event)
        self.x = None


def _finish(stream, under_way):
    stream.synchronize()
    under_way.clear()
