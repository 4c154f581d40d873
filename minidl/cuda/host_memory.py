"""Copies arrays between a GPU's memory and the host's memory. NumPy arrays are simply copied.

    compute stream   | backward of b | event | backward of a ...
    copy stream                      | wait for the event, copy b to pinned host memory

A GPU can copy while it computes. For this, the host's memory must be pinned, so that the system
does not move it. The copy must be on a separate stream. That stream must wait until the source has
been computed. It must also wait until the old values in the target have been read. Who waits for
the copy, and which file uses the function?

    to_host, to_device   the calling thread waits, the device does not      parallel/zero/offload.py
    CopyStream           the compute stream waits, no thread does           memory/offload.py
    SideStream           the compute stream waits for another thread's work parallel/data/bucket.py

As soon as memory is freed, CuPy's pool may give it to a new array. This is safe only on the stream
that allocated the memory. So if two streams use an array, the thread of the compute stream must
allocate this array. The array may be freed after its own stream has waited for the other stream
(`join`). It may also be freed after the other stream's event has happened.

Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
Test: tests/cuda/test_host_memory.py (imitates late copies, without a GPU)
"""

import ctypes
import functools
import weakref
from collections import deque

import numpy as np

from minidl.backend import library_of


def pinned(xp, n_elems, dtype):
    """Returns an uninitialised 1-d NumPy array (n_elems,). If xp is CuPy, the array is in pinned
    memory: the system does not move it. So the GPU can copy from and to this array while it
    computes."""
    if xp is np:
        return np.empty(n_elems, dtype)
    memory = xp.cuda.alloc_pinned_memory(max(1, n_elems) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, max(1, n_elems))[:n_elems]


def queue_copy(source, into, stream):
    """Queues the copy `into = source` on the stream. One array must be in pinned memory and the
    other on a GPU. Both must be contiguous. The caller must keep both arrays until the copy has
    ended."""
    if isinstance(into, np.ndarray):
        source.data.copy_to_host_async(ctypes.c_void_p(into.ctypes.data), into.nbytes, stream)
    else:
        into.data.copy_from_host_async(ctypes.c_void_p(source.ctypes.data), into.nbytes, stream)


def computed(x):
    """Returns an event. A copy of x must wait for this event. The event happens at the end of the
    work that is now queued on the current stream of x's device. Returns None for a NumPy array."""
    if isinstance(x, np.ndarray):
        return None
    with x.device:
        return library_of(x).cuda.get_current_stream().record()


def join(x, event):
    """Makes the current stream of x's device wait for the event. The host does not wait. If the
    event is None, does nothing."""
    if event is not None:
        with x.device:
            library_of(x).cuda.get_current_stream().wait_event(event)


class SideStream:
    """A GPU stream for the work of another thread. It runs in parallel to the compute stream.

    Without a SideStream, the thread uses the null stream, which all threads share. Then the
    thread's work and the computation wait for each other."""

    def __init__(self):
        self.streams = {}  # {device number: stream}

    def run(self, event, x, fn, *args):
        """Calls fn(*args). The GPU work of fn on x's device starts after `event`. Returns an event
        for `join`. The event happens when this work has ended. The host does not wait. For NumPy
        arrays both events are None."""
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
    """Copies x, an array on a device, into `out`, an array in the host's memory. With `add`, adds x
    to `out` instead. x must be contiguous. The copy starts after `event`. The function returns when
    the copy has ended."""
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
    """Copies x, an array in the host's memory, into `out`, an array on a device. The copy starts
    after `event`. The function returns when the copy has ended. Raises ValueError if `out` is not
    contiguous."""
    if isinstance(out, np.ndarray):
        out[...] = x
        return
    if not out.flags.c_contiguous:
        raise ValueError(f"want a contiguous weight, to copy its bytes; got shape {out.shape} and "
                         f"strides {out.strides}. Make it contiguous before it is offloaded")
    with out.device:
        stream = library_of(out).cuda.Stream(non_blocking=True)
        _queue(stream, event, x, out)
        stream.synchronize()


def _queue(stream, event, source, into):
    """Queues the copy `into = source` on the stream, after the event. Both arrays must be
    contiguous, and one of them must be a NumPy array."""
    stream.wait_event(event)
    queue_copy(source, into, stream)


class CopyStream:
    """Copies arrays between a GPU and pinned memory, in order. No thread waits for a copy."""

    def __init__(self, x):
        with x.device:
            self.stream = library_of(x).cuda.Stream(non_blocking=True)
        self.under_way = deque()  # keeps the arrays until their copy ends
        weakref.finalize(self, _finish, self.stream, self.under_way)

    def copy(self, source, into):
        """Queues the copy `into = source`. The copy starts after the work that is now queued on the
        compute stream. One array must be on the GPU, and the other must be a NumPy array in pinned
        memory. Returns the Copy."""
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
    """Returns the CopyStream of x's GPU, always the same one. (When a CopyStream is deleted, the
    host waits for its copies.)"""
    return _copy_stream(library_of(x), x.device.id)


@functools.cache
def _copy_stream(library, number):
    with library.cuda.Device(number):
        return CopyStream(library.empty(0, np.uint8))


class Copy:
    """A copy that may not have ended. The object keeps both arrays alive."""

    def __init__(self, x, host, event):
        self.x, self.host, self.event = x, host, event

    def result(self):
        """Makes the compute stream wait for the copy. After this call, the device's array may be
        used or released. The host's array is kept until the copy has ended."""
        with self.x.device:
            library_of(self.x).cuda.get_current_stream().wait_event(self.event)
        self.x = None


def _finish(stream, under_way):
    stream.synchronize()
    under_way.clear()
