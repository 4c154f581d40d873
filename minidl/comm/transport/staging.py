"""Sends a message from or to a GPU: through pinned host memory, or directly from device memory.

    staged      device x ── down, wait ──► pinned ── MPI ──► pinned ── up ──► device into
    direct      device x ── wait ───────────────── MPI ─────────────────────► device into

Every transport accepts device arrays (CuPy) like NumPy arrays. So every algorithm of comm/ runs on
device arrays, and the sums are kernels on the current stream. A message is sent directly if the MPI
library reads and writes device memory itself ("CUDA-aware", `t.cuda_aware`). Otherwise the message
is staged.

In comm/ the host waits for the device only in these cases:

    staged   isend           until the bytes are in pinned memory: once per message
    direct   isend, irecv    until the kernels that write x or read `into` have ended, because MPI
                             does not know streams
    NCCL (nccl.py)           never: its kernels are on the stream

After a receive the host does not wait. The copy to the device is on the current stream, before all
later kernels that read the array. `t.uploads` keeps the pinned buffer until the copy has ended.
Otherwise CuPy's pool can give the buffer's memory to another caller too early.

A staged ring of n ranks copies a chunk to the host in each of its 2(n-1) steps. `on_host` copies
the array to the host only once, for a collective on the host (device.py).
Test: tests/comm/test_device_arrays.py   Source: CUDA C++ Programming Guide, "Streams"
"""

import ctypes
from contextlib import contextmanager

import numpy as np

from minidl.backend import library_of
from minidl.comm.checks import check_array
from minidl.comm.transport.protocol import Then
from minidl.cuda.host_memory import pinned, queue_copy

ALL = (slice(None),)


def on_device(x):
    """Returns True if x is a CuPy array. The class of a CuPy array has the name ndarray, like
    NumPy's class, but it is not NumPy's class."""
    return not isinstance(x, np.ndarray) and type(x).__name__ == "ndarray"


def isend(t, x, dst, tag):
    """Sends a device array by t.isend. Returns the Request. Raises TypeError if x is no array."""
    if not on_device(x):
        check_array(t, x)
    if not t.cuda_aware:
        return t.isend(download(x), dst, tag)
    with x.device:
        x = contiguous(x)
        library_of(x).cuda.get_current_stream().synchronize()
    return Then([t.isend(as_host(x), dst, tag)], lambda held=x: None)


def irecv(t, into, src, tag):
    """Receives into a device array by t.irecv. Returns the Request. After its wait(), later work on
    the current stream finds the message in `into`. Raises TypeError if `into` is no array."""
    if not on_device(into):
        check_array(t, into)
    direct = t.cuda_aware and into.flags.c_contiguous
    with into.device:
        library = library_of(into)
        if direct:
            library.cuda.get_current_stream().synchronize()
        host = as_host(into) if direct else pinned(library, into.size, into.dtype)
    arrived = (lambda: None) if direct else (lambda: upload(t, host.reshape(into.shape), into))
    return Then([t.irecv(host, src, tag)], arrived)


def download(x, out=None):
    """Copies the device array x to pinned memory. Returns the copy, a host array of the same shape.
    The host waits for the copy, and so for the kernels on the current stream that compute x.

    out: the host array that gets the copy. If None, a new array is made."""
    with x.device:
        library, x = library_of(x), contiguous(x)
        host = pinned(library, x.size, x.dtype).reshape(x.shape) if out is None else out
        stream = library.cuda.get_current_stream()
        queue_copy(x, host, stream)
        stream.synchronize()
    return host


def upload(t, host, into):
    """Copies `host`, an array in pinned memory, to the device array `into`, on the current stream.
    Does not wait."""
    with into.device:
        library = library_of(into)
        place = into if into.flags.c_contiguous else library.empty(into.shape, into.dtype)
        stream = library.cuda.get_current_stream()
        queue_copy(host, place, stream)
        keep(t, stream.record(), host)
        if place is not into:
            into[...] = place


def keep(t, event, *arrays):
    """Keeps the pinned arrays alive until `event`, a CUDA event, has happened. Frees the arrays of
    earlier events that have happened. t: the transport that keeps them, in t.uploads."""
    while t.uploads and t.uploads[0][0].done:
        t.uploads.popleft()
    t.uploads.append((event, arrays))


@contextmanager
def on_host(t, x, reads=ALL, writes=ALL):
    """`with on_host(t, x) as host:` yields a host array with the elements of the contiguous device
    array x. At the end of the block, copies host back to x. If x is a NumPy array, yields x itself.

    reads    the slices of x to copy to the host before the block
    writes   the slices of x to copy back to the device after the block"""
    if not on_device(x):
        yield x
        return
    host = pinned(library_of(x), x.size, x.dtype).reshape(x.shape)
    for part in reads:
        if x[part].size:
            download(x[part], host[part])
    yield host
    for part in writes:
        if x[part].size:
            upload(t, host[part], x[part])


@contextmanager
def new_on(t, like, n_elems, dtype):
    """`with new_on(t, like, 10, "f4") as (host, x):` yields a host array and a new array x on the
    device of `like`. Both arrays are 1-d and have n_elems elements. At the end of the block, copies
    host to x. If `like` is a NumPy array, host and x are the same array."""
    if not on_device(like):
        host = np.empty(n_elems, dtype)
        yield host, host
        return
    with like.device:
        x = library_of(like).empty(n_elems, dtype)
    host = pinned(library_of(like), n_elems, dtype)
    yield host, x
    upload(t, host, x)


def contiguous(x):
    return x if x.flags.c_contiguous else library_of(x).ascontiguousarray(x)


def as_host(x):
    """Returns a NumPy array of uint8 that has the address and the length of x's device memory. MPI
    needs only these two numbers. The host cannot read the elements of the array."""
    return np.frombuffer((ctypes.c_uint8 * x.nbytes).from_address(x.data.ptr), np.uint8)


def says_cuda_aware(library):
    """library: a loaded MPI library. Returns True if its function MPIX_Query_cuda_support says that
    the library is CUDA-aware. Returns False if there is no such function."""
    query = getattr(library, "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1
