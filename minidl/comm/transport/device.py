"""Collectives of CUDA arrays (CuPy) for training: by NCCL, directly, or staged.

    way       who moves the bytes                  who sums        the host waits for the device
    NCCL      GPUs, over NVLink, PCIe, network     NCCL            never
    direct    a CUDA-aware MPI, device memory      CuPy's kernels  once per message
    staged    any MPI, pinned host memory          NumPy           once per segment (or block)

`connect(t, x)` chooses a way. It takes NCCL if every rank has its own GPU and CuPy can load NCCL.
If not, it takes the direct way if the MPI library reads and writes device memory itself. If not, it
takes the staged way. `connect` also returns a text that tells which way it took, and why there is
no better way. The other functions of this file use the way of the transport that is passed to them.

The staged way works with any MPI. x goes in segments through two pinned buffers. The copies of two
segments run at the same time as the all-reduce of a third segment. D is a copy from device to host,
and U is a copy back. The copies run one after the other, on one stream:

    host      wait D0 | all-reduce 0    | wait D1 | all-reduce 1    | wait D2 | all-reduce 2
    stream    D0      | D1              |         | U0 D2           |         | U1 D3        | ...
    buffer    0         1                           0  0                        1  1

Segment i uses buffer i mod 2. In the stream, D(i+1) comes after U(i-1), which uses the same buffer.
So this buffer is free when D(i+1) begins. The host waits only for D(i). Let s be the number of
segments, c the seconds to copy one segment, and r the seconds to reduce one segment. Then the time
is at most 2c + s max(r, 2c). Without overlap the time is s (r + 2c).

Any other algorithm runs on device arrays, too. Then staging.py stages each message. In a ring of
staged messages on n ranks, the host waits for the device 2(n-1) times. The ring copies 2(n-1)/n
times the bytes of x to the host. The staged way of this file copies x to the host once.

Three files contain this code. staging.py moves one message. nccl.py calls NCCL. This file chooses
the way for a whole array. The rest of minidl does not need to know the way.
Test: tests/comm/transport/test_device.py
"""

import platform
from collections import defaultdict

import numpy as np

from minidl.backend import library_of
from minidl.comm import average, objects, ring, ring_blocks, tree
from minidl.comm.collective import collective
from minidl.comm.transport import nccl, staging
from minidl.comm.transport.staging import on_device
from minidl.cuda.host_memory import pinned, queue_copy

# A copy of 4 MiB takes about 0.2 ms over PCIe 4.0. Starting a copy takes 10 us, which is little.
# The first and the last copy do not overlap with an all-reduce, but they are a small part of the
# time.
SEGMENT_BYTES = 4 << 20


def connect(t, x):
    """Returns (transport, text). The transport is the best transport for arrays like x. It is t
    itself, or t with NCCL. The text tells which way this transport sends arrays (NCCL, direct or
    staged), and why there is no better way.

    All ranks of t must call connect. The GPU of a rank must be its current device."""
    if not on_device(x):
        return t, "host memory"
    if isinstance(t, nccl.Nccl):
        return t, "NCCL: the transport was made by nccl.connect"
    if t.simulated:
        return t, "staged through pinned memory: simulated ranks share one GPU"
    cupy = library_of(x)
    with x.device as gpu:
        name = f"GPU {gpu.pci_bus_id} of {platform.node()}"
        facts = objects.all_gather(t, (name, nccl.available(cupy), t.cuda_aware))
        no_nccl = why_no_nccl(facts)
        if no_nccl is None:
            return nccl.connect(t, cupy), "NCCL: a GPU for every rank"
    if all(aware for *_, aware in facts):
        return t, f"directly: {t.library} reads device memory. No NCCL: {no_nccl}"
    return t, f"staged through pinned memory: {t.library} is not CUDA-aware. No NCCL: {no_nccl}"


def why_no_nccl(facts):
    """Returns None if NCCL can connect the ranks, otherwise a text with the reason.

    facts: a list with a tuple for each rank. The tuple has the name of the rank's GPU, and True if
    CuPy can load NCCL on this rank. Further entries of the tuple are ignored."""
    ranks = defaultdict(list)
    for rank, (gpu, available, *_) in enumerate(facts):
        if not available:
            return f"CuPy cannot load NCCL on rank {rank} (pip install nvidia-nccl-cu12 or -cu13)"
        ranks[gpu].append(rank)
    for gpu, sharing in ranks.items():
        if len(sharing) > 1:
            return f"ranks {', '.join(map(str, sharing))} share {gpu}, but NCCL wants one for each"
    return "there is only one rank" if len(facts) == 1 else None


@collective
def all_reduce(t, x, op=np.add):
    """Combines all ranks' contiguous x element by element with op. On every rank, writes the result
    into x. Returns x.

    At the time of the call, kernels on the current stream may still be computing x. Later work on
    this stream finds the result in x. If x is a NumPy array, calls `ring.all_reduce`."""
    if not on_device(x):
        return ring.all_reduce(t, x, op)
    if isinstance(t, nccl.Nccl):
        return nccl.all_reduce(t, x, op)
    if t.cuda_aware:
        with x.device:  # needed because a background thread has device 0 as its current device
            ring.all_reduce(t, _flat(t, x), op)
        return x
    return staged_all_reduce(t, x, op)


@collective
def staged_all_reduce(t, x, op=np.add, *, all_reduce=ring.all_reduce, segment_bytes=SEGMENT_BYTES):
    """Does the same as `all_reduce`, by the staged way. x goes in segments through two buffers in
    pinned memory. A buffer has segment_bytes bytes, or x.nbytes if x is smaller. Returns x.

    all_reduce   any function `f(t, array, op)` that works in place on host arrays. It is called
                 once for each segment
    """
    if not on_device(x):
        return all_reduce(t, x, op)
    cuda = library_of(x).cuda
    with x.device:
        segments = cut(_flat(t, x), segment_bytes)
        buffers = [pinned(library_of(x), len(segments[0]), x.dtype) for _ in segments[:2]]
        hosts = [buffers[i % 2][: len(segment)] for i, segment in enumerate(segments)]
        compute, copies = cuda.get_current_stream(), cuda.Stream(non_blocking=True)
        copies.wait_event(compute.record())  # waits for kernels that still compute x

        def download(i):
            queue_copy(segments[i], hosts[i], copies)
            return copies.record()

        arrived = download(0)
        for i, (segment, host) in enumerate(zip(segments, hosts, strict=True)):
            arriving, arrived = arrived, download(i + 1) if i + 1 < len(segments) else None
            arriving.synchronize()
            all_reduce(t, host, op)
            queue_copy(host, segment, copies)
        end = copies.record()
        compute.wait_event(end)
        staging.keep(t, end, x, *buffers)
    return x


# The next three functions do not have the decorator @collective. So their messages have the labels
# of the collectives that they call. These are the same labels as for arrays on the host.


def mean_block(t, x, bounds, divisor=None):
    """Like `average.mean_block`, but also accepts device arrays. Computes the mean of all ranks'
    1-d x. Rank r returns only block r of the mean, as the view x[bounds[r] : bounds[r+1]]."""
    if isinstance(t, nccl.Nccl):
        return nccl.mean_block(t, x, bounds, divisor)
    if on_device(x) and t.cuda_aware:
        return average.mean_block(t, x, bounds, divisor)
    own = slice(*bounds[t.rank : t.rank + 2])
    with staging.on_host(t, _flat(t, x), writes=[own]) as host:
        average.mean_block(t, host, bounds, divisor)
    return x[own]


def all_gather(t, x, bounds):
    """Like `ring_blocks.all_gather`, but also accepts device arrays. Copies every rank's own block
    of the 1-d x to all ranks. Returns x."""
    if isinstance(t, nccl.Nccl):
        return nccl.gather_blocks(t, x, bounds)
    if on_device(x) and t.cuda_aware:
        return ring_blocks.all_gather(t, x, bounds)
    low, high = bounds[t.rank : t.rank + 2]
    others = [slice(low), slice(high, None)]
    with staging.on_host(t, _flat(t, x), [slice(low, high)], others) as host:
        ring_blocks.all_gather(t, host, bounds)
    return x


def broadcast(t, x, root=0):
    """Like `tree.broadcast`, but also accepts device arrays. Copies root's contiguous x into every
    rank's x. Returns x."""
    if isinstance(t, nccl.Nccl):
        return nccl.broadcast(t, x, root)
    if on_device(x) and t.cuda_aware:
        return tree.broadcast(t, x, root)
    everything, nothing = [slice(None)], []
    ways = (everything, nothing) if t.rank == root else (nothing, everything)
    with staging.on_host(t, _flat(t, x), *ways) as host:
        tree.broadcast(t, host, root)
    return x


def cut(flat, segment_bytes):
    """Returns a list of views of the 1-d array `flat`. Each view has segment_bytes bytes. The last
    view may be shorter. For an empty array the list has one empty view."""
    n_elems = max(1, segment_bytes // flat.dtype.itemsize)
    return [flat[i : i + n_elems] for i in range(0, max(1, len(flat)), n_elems)]


def _flat(t, x):
    if not x.flags.c_contiguous:
        raise ValueError(
            f"rank {t.rank}: wanted a contiguous device array, to change it in place; got shape "
            f"{x.shape}, strides {x.strides}. Pass cupy.ascontiguousarray(x).")
    return x.reshape(-1)
