"""Collectives by NVIDIA's NCCL, for GPUs. The calls are the same as in ring.py and tree.py.

    import cupy
    cupy.cuda.Device(t.rank % cupy.cuda.runtime.getDeviceCount()).use()     a GPU per rank
    gpus = nccl.connect(t, cupy)        t, with a communicator of NCCL
    nccl.all_reduce(gpus, x)            x: a CuPy array, in place

NCCL finds the links between the GPUs (NVLink, PCIe, network cards), and chooses between ring and
tree. Our transport sends only NCCL's id of 128 bytes, so a ledger does not see NCCL's messages.
NCCL's kernels run on the current stream. A call returns at once, and all later work on that stream
finds the result in x.

NCCL's own reduce-scatter needs equal blocks. Our reduce-scatter accepts any length, and cuts the
array like ring.py or ring_blocks.py. It calls one NCCL reduce per chunk, to the chunk's owner. All
these calls are in one group of NCCL calls. The all-gather calls one NCCL broadcast per chunk.

Sources: NCCL's API reference; CuPy's cupy.cuda.nccl.    Test: tests/comm/transport/test_nccl.py
"""

import importlib

import numpy as np

from minidl.backend import accumulate_dtype
from minidl.comm import chunks, tree
from minidl.comm.checks import check_bounds, check_flat, check_peer
from minidl.comm.collective import collective
from minidl.comm.transport.protocol import Wrapper

_OPS = {np.add: "SUM", np.multiply: "PROD", np.maximum: "MAX", np.minimum: "MIN"}
_DTYPES = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"}


def connect(t, cupy):
    """Returns t as a transport with a communicator of NCCL. All ranks of t must call this function.

    cupy   the module. Its current device must be the GPU of this rank. NCCL raises an error if two
           ranks use the same GPU

    Raises RuntimeError if CuPy cannot load NCCL."""
    if not available(cupy):
        raise RuntimeError(
            f"rank {t.rank}: this CuPy cannot load NCCL. Run pip install nvidia-nccl-cu12 (or "
            "-cu13, as in the name of your CuPy). Without NCCL use device.all_reduce")
    return Nccl(t, cupy)


def available(cupy):
    """Returns True if this CuPy can load NCCL."""
    try:
        return bool(library(cupy).available)
    except ImportError:
        return False


def library(cupy):
    """Returns the module cupy.cuda.nccl. `import cupy` does not always import it."""
    return getattr(cupy.cuda, "nccl", None) or importlib.import_module("cupy.cuda.nccl")


class Nccl(Wrapper):
    """The transport t with an NCCL communicator of the same ranks. A subgroup gets its own NCCL
    communicator."""

    def __init__(self, inner, cupy):
        super().__init__(inner)
        self.cupy, self.nccl = cupy, library(cupy)
        unique_id = np.zeros(128, np.uint8)
        if self.rank == 0:
            unique_id[:] = np.frombuffer(self.nccl.get_unique_id(), np.uint8)
        tree.broadcast(inner, unique_id)
        self.communicator = self.nccl.NcclCommunicator(
            self.size, unique_id.tobytes(), self.rank)

    def around(self, inner):
        return Nccl(inner, self.cupy)


@collective
def all_reduce(t, x, op=np.add):
    """Combines all ranks' contiguous x element by element with op. On every rank, writes the result
    into x. Returns x.

    op: np.add, np.multiply, np.maximum or np.minimum. A float16 array is summed in float16."""
    nccl, stream = _engine(t, x)
    kinds = _dtype(t, nccl, x), _op(t, nccl, op)
    t.communicator.allReduce(x.data.ptr, x.data.ptr, x.size, *kinds, stream)
    return x


@collective
def reduce_scatter(t, x, op=np.add):
    """Like `ring.reduce_scatter`. Returns this rank's complete chunk: chunk rank+1, modulo n, of
    `chunks.split(x, n)`. x: 1-d, contiguous. The other chunks do not change."""
    chunk = chunks.split(check_flat(t, x), t.size)
    _reduce_each(t, x, _by_owner(chunk), op)
    return chunk[(t.rank + 1) % t.size]


@collective
def all_gather(t, x):
    """Copies every rank's own chunk to all ranks, like `ring.all_gather`. Returns x. A rank's own
    chunk is chunk rank+1, modulo n, of `chunks.split(x, n)`. x: 1-d, contiguous."""
    return _broadcast_each(t, x, _by_owner(chunks.split(check_flat(t, x), t.size)))


@collective
def mean_block(t, x, bounds, divisor=None):
    """Like `average.mean_block`. Computes the mean of all ranks' 1-d x. Rank r returns only block r
    of the mean, as the view x[bounds[r] : bounds[r+1]]. A float16 element is sent in 2 bytes, and
    is added in float32."""
    block = _blocks(t, x, bounds)
    own, divisor = block[t.rank], t.size if divisor is None else divisor
    if accumulate_dtype(x.dtype) == x.dtype:
        _reduce_each(t, x, block, np.add)
        if divisor != 1:
            own /= divisor
        return own
    nccl, stream = _engine(t, x)
    kind = _dtype(t, nccl, x)
    theirs = t.cupy.empty((t.size, len(own)), x.dtype)  # a row from each rank
    theirs[t.rank] = own
    nccl.groupStart()
    for peer in range(t.size):
        if peer != t.rank and len(block[peer]):
            t.communicator.send(block[peer].data.ptr, len(block[peer]), kind, peer, stream)
        if peer != t.rank and len(own):
            t.communicator.recv(theirs[peer].data.ptr, len(own), kind, peer, stream)
    nccl.groupEnd()
    total = theirs[(t.rank + 1) % t.size].astype(np.float32)
    for i in range(2, t.size + 1):
        total += theirs[(t.rank + i) % t.size]
    total /= divisor
    own[...] = total  # cast after the division: a float16 sum of 8 ranks can exceed 65504
    return own


@collective
def gather_blocks(t, x, bounds):
    """Like `ring_blocks.all_gather`: copies every rank's own block, x[bounds[r] : bounds[r+1]], to
    all ranks. Returns x."""
    return _broadcast_each(t, x, _blocks(t, x, bounds))


@collective
def broadcast(t, x, root=0):
    """Copies root's contiguous x into every rank's x. Returns x."""
    nccl, stream = _engine(t, x)
    check_peer(t, root, "root")
    t.communicator.broadcast(x.data.ptr, x.data.ptr, x.size, _dtype(t, nccl, x), root, stream)
    return x


def _by_owner(chunk):
    """Returns the ring's chunks in the order of their owners. Rank r owns chunk r+1, modulo n."""
    return [*chunk[1:], chunk[0]]


def _blocks(t, x, bounds):
    b = check_bounds(t, bounds, len(check_flat(t, x)))
    return [x[b[i] : b[i + 1]] for i in range(t.size)]


def _reduce_each(t, x, block, op):
    """Reduces block[r] of all ranks' x onto rank r. Does this for all r, in one group of NCCL
    calls."""
    nccl, stream = _engine(t, x)
    kinds = _dtype(t, nccl, x), _op(t, nccl, op)
    nccl.groupStart()
    for owner, part in enumerate(block):
        if len(part):
            t.communicator.reduce(part.data.ptr, part.data.ptr, len(part), *kinds, owner, stream)
    nccl.groupEnd()


def _broadcast_each(t, x, block):
    """Copies block[r] of rank r's x to all ranks. Does this for all r. Returns x."""
    nccl, stream = _engine(t, x)
    kind = _dtype(t, nccl, x)
    nccl.groupStart()
    for owner, part in enumerate(block):
        if len(part):
            t.communicator.broadcast(part.data.ptr, part.data.ptr, len(part), kind, owner, stream)
    nccl.groupEnd()
    return x


def _engine(t, x):
    """Returns (CuPy's nccl module, the address of the current stream). Raises TypeError or
    ValueError if t or x does not work with NCCL."""
    if not isinstance(t, Nccl):
        raise TypeError(f"rank {t.rank}: wanted the transport that nccl.connect(t, cupy) returns; "
                        f"got {type(t).__name__}. Wrap in this order: nccl.connect(Ledger(t), "
                        "cupy)")
    if isinstance(x, np.ndarray) or not x.flags.c_contiguous:
        kind = "a NumPy array" if isinstance(x, np.ndarray) else f"strides {x.strides}"
        raise ValueError(f"rank {t.rank}: NCCL wants a contiguous array on the GPU; got {kind}. "
                         "Pass cupy.ascontiguousarray(x). For host arrays use ring.py.")
    return t.nccl, t.cupy.cuda.get_current_stream().ptr


def _dtype(t, nccl, x):
    if x.dtype.name not in _DTYPES:
        raise TypeError(
            f"rank {t.rank}: NCCL wants a dtype among {', '.join(sorted(_DTYPES))}; got {x.dtype}. "
            "Cast x.")
    return getattr(nccl, f"NCCL_{x.dtype.name.upper()}")


def _op(t, nccl, op):
    if op not in _OPS:
        raise ValueError(f"rank {t.rank}: NCCL reduces with np.add, np.multiply, np.maximum or "
                         f"np.minimum; got {op}. For other ops use ring.all_reduce.")
    return getattr(nccl, f"NCCL_{_OPS[op]}")
