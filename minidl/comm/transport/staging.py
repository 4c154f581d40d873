"""A message from or to a GPU: through pinned host memory, or from device memory itself.

    staged      device x ── down, wait ──► pinned ── MPI ──► pinned ── up ──► device into
    direct      device x ── wait ───────────────── MPI ─────────────────────► device into

Every transport takes device arrays (CuPy's) like NumPy's, so every algorithm of this folder runs on
them: the sums are kernels on the current stream. Directly where the MPI library reads and writes
device memory itself ("CUDA-aware"), which `t.cuda_aware` asks it; else staged.

The host waits for the device when it must, and at no other place of comm/:

    staged   isend           for the bytes to be in pinned memory: once a message
    direct   isend, irecv    for the kernels that write x or still read `into`: MPI knows no streams
    NCCL (nccl.py)           never: its kernels are on the stream

After a receive it does not wait: the copy up is on the current stream, ahead of all that will read
the array there. Its pinned buffer is kept until the copy has ended (`t.uploads`), because CuPy's
pool would lend it again at once.

A whole array that goes around a ring would come down n-1 times; `on_host` brings it down once, for
a collective on the host: device.py.
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
    """Whether x is CuPy's array; its class has the name of NumPy's."""
    return not isinstance(x, np.ndarray) and type(x).__name__ == "ndarray"


def isend(t, x, dst, tag):
    """t.isend of a device array, or the error for what is no array at all."""
    if not on_device(x):
        check_array(t, x)
    if not t.cuda_aware:
        return t.isend(download(x), dst, tag)
    with x.device:
        x = contiguous(x)
        library_of(x).cuda.get_current_stream().synchronize()
    return Then([t.isend(as_host(x), dst, tag)], lambda held=x: None)


def irecv(t, into, src, tag):
    """t.irecv into a device array: complete for later work on the stream that calls wait()."""
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
    """x in pinned memory (`out`, if given): a host array of its shape. The host waits for the copy,
    and so for what computes x on the current stream."""
    with x.device:
        library, x = library_of(x), contiguous(x)
        host = pinned(library, x.size, x.dtype).reshape(x.shape) if out is None else out
        stream = library.cuda.get_current_stream()
        queue_copy(x, host, stream)
        stream.synchronize()
    return host


def upload(t, host, into):
    """into = host, which is in pinned memory, on the current stream; nobody waits."""
    with into.device:
        library = library_of(into)
        place = into if into.flags.c_contiguous else library.empty(into.shape, into.dtype)
        stream = library.cuda.get_current_stream()
        queue_copy(host, place, stream)
        keep(t, stream.record(), host)
        if place is not into:
            into[...] = place


def keep(t, event, *arrays):
    """Hold the arrays until the event has happened; let go of those whose event has."""
    while t.uploads and t.uploads[0][0].done:
        t.uploads.popleft()
    t.uploads.append((event, arrays))


@contextmanager
def on_host(t, x, reads=ALL, writes=ALL):
    """`with on_host(t, x) as host:` a host array with the elements of the contiguous x; afterwards
    x has those of host. A NumPy x is given as it is.

    reads, writes   which slices of x come down before, and go up afterwards"""
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
    """`with new_on(t, like, 10, "f4") as (host, x):` x: a new 1-d array in the memory of `like`,
    which afterwards has the elements of host."""
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
    """The device memory of x as if it were a NumPy array: an address and a length for MPI. Nobody
    may look into it from here."""
    return np.frombuffer((ctypes.c_uint8 * x.nbytes).from_address(x.data.ptr), np.uint8)


def says_cuda_aware(library):
    """What MPIX_Query_cuda_support of a loaded MPI library returns; False if it has none."""
    query = getattr(library, "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1
