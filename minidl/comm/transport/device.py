"""All-reduce of CUDA arrays (CuPy's): staged through host memory, or directly.

Staged, for any MPI: x goes in segments through two pinned buffers, and the copies of two segments
run beside the all-reduce of a third. D: device to host, U: back; one stream, first in first out:

    host      wait D0 | all-reduce 0    | wait D1 | all-reduce 1    | wait D2 | all-reduce 2 | wait
    stream    D0      | D1              |         | U0 D2           |         | U1 D3        | ...
    buffer    0         1                           0  0                        1  1

Segment i uses buffer i mod 2. D(i+1) follows U(i-1) in the stream, so its buffer is free by then,
and only two events are waited for: x is computed, and D(i) is done. With s segments, c seconds to
copy one and r to reduce one, it takes 2c + s max(r, 2c) at most, instead of s (r + 2c).

Directly, where the MPI library reads and writes device memory itself (CUDA-aware), as its function
MPIX_Query_cuda_support says, which Open MPI and MPICH both have. Then messages are sent from device
addresses, and the sums are CuPy's kernels.

NCCL, the third way, is in nccl.py.     Test: tests/comm/transport/test_device.py
"""

import ctypes
import sys

import numpy as np

from minidl.backend import library_of
from minidl.comm import ring
from minidl.comm.collective import collective
from minidl.comm.transport.mpi import MPITransport
from minidl.comm.transport.protocol import Wrapper

# A copy of 4 MiB takes some 0.2 ms over PCIe 4.0, its start 10 us: so the starts do not count, and
# the first and the last copy, beside which nothing runs, take little of the whole.
SEGMENT_BYTES = 4 << 20


@collective
def all_reduce(t, x, op=np.add):
    """The elementwise op of all ranks' contiguous x, in place, on every rank; returns x.

    Directly if this transport's MPI is CUDA-aware, else staged. x may be computed by work under way
    on the current stream; when this returns, x is complete. A NumPy x goes to `ring.all_reduce`."""
    if cuda_aware(t):
        return direct_all_reduce(t, x, op)
    return staged_all_reduce(t, x, op)


@collective
def staged_all_reduce(t, x, op=np.add, *, all_reduce=ring.all_reduce, segment_bytes=SEGMENT_BYTES):
    """`all_reduce` through two pinned buffers of segment_bytes, or of x.nbytes if that is less.

    all_reduce   any `f(t, array, op)` in place on host arrays; called once for each segment"""
    if isinstance(x, np.ndarray):
        return all_reduce(t, x, op)
    cuda = library_of(x).cuda
    with x.device:  # a background thread begins on device 0
        segments = cut(_flat(t, x), segment_bytes)
        # mem: what the pool lends must not go back to it before the last copy
        longest, itemsize = len(segments[0]), x.dtype.itemsize
        mem = [cuda.alloc_pinned_memory(longest * itemsize) for _ in segments[:2]]
        buffers = [np.frombuffer(m, x.dtype, longest) for m in mem]
        hosts = [buffers[i % 2][: len(segment)] for i, segment in enumerate(segments)]
        copies = cuda.Stream(non_blocking=True)
        copies.wait_event(cuda.get_current_stream().record())  # x may still be under computation

        def download(i):
            segments[i].data.copy_to_host_async(_address(hosts[i]), hosts[i].nbytes, copies)
            return copies.record()

        arrived = download(0)
        for i, (segment, host) in enumerate(zip(segments, hosts, strict=True)):
            arriving, arrived = arrived, download(i + 1) if i + 1 < len(segments) else None
            arriving.synchronize()
            all_reduce(t, host, op)
            segment.data.copy_from_host_async(_address(host), host.nbytes, copies)
        copies.synchronize()
    return x


@collective
def direct_all_reduce(t, x, op=np.add):
    """`all_reduce` by a ring whose messages are device memory. `cuda_aware(t)` must hold: another
    MPI would read the address of x as one in host memory, and crash."""
    if isinstance(x, np.ndarray):
        return ring.all_reduce(t, x, op)
    with x.device:
        flat, messages = _flat(t, x), _DeviceMessages(t, library_of(x))
        ring.reduce_scatter(messages, flat, op)
        ring.all_gather(messages, flat)
    return x


def cuda_aware(t):
    """Whether the MPI under this transport says that it can send device memory; False without MPI.

    MPICH's answer needs MPIR_CVAR_ENABLE_GPU=1 in its environment, if it was built for CUDA."""
    if not isinstance(t.innermost, MPITransport):
        return False
    mpi4py = sys.modules["mpi4py.MPI"]  # imported by mpi.py
    return says_cuda_aware(ctypes.CDLL(mpi4py.__file__))  # finds what mpi4py is linked with, too


def says_cuda_aware(library):
    """What MPIX_Query_cuda_support of a loaded MPI library returns; False if it has none."""
    query = getattr(library, "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1


def cut(flat, segment_bytes):
    """Views of the 1-d array, of segment_bytes and the rest; one empty view of an empty array."""
    n_elems = max(1, segment_bytes // flat.dtype.itemsize)
    return [flat[i : i + n_elems] for i in range(0, max(1, len(flat)), n_elems)]


class _DeviceMessages(Wrapper):
    """The transport for device arrays: hands their addresses to a CUDA-aware MPI.

    MPI knows no streams: before a message, the kernels that compute it must have ended, and those
    that read the buffer it comes into."""

    def __init__(self, inner, cupy):
        super().__init__(inner)
        self.cupy, self.stream = cupy, cupy.cuda.get_current_stream()

    def sendrecv(self, array, dst, into, src, tag=0):
        self.stream.synchronize()
        self.inner.sendrecv(_as_host(array), dst, _as_host(into), src, tag)
        return into

    def scratch(self, n_elems, dtype):
        return self.cupy.empty(n_elems, dtype)


def _as_host(x):
    """The device memory of x as if it were a NumPy array: an address and a length for MPI. Nobody
    may look into it from here."""
    return np.frombuffer((ctypes.c_uint8 * x.nbytes).from_address(x.data.ptr), np.uint8)


def _address(host):
    return ctypes.c_void_p(host.ctypes.data)


def _flat(t, x):
    if not x.flags.c_contiguous:
        raise ValueError(
            f"rank {t.rank}: a device array is reduced in place and must be contiguous; got shape "
            f"{x.shape}, strides {x.strides}. Pass cupy.ascontiguousarray(x).")
    return x.reshape(-1)
