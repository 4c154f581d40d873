"""Collectives by NVIDIA's NCCL, for many GPUs in a node: the same calls as ring.py and tree.py.

    import cupy
    cupy.cuda.Device(t.rank % cupy.cuda.runtime.getDeviceCount()).use()     a GPU per rank
    gpus = nccl.connect(t, cupy)        t, and beside it a communicator of NCCL
    nccl.all_reduce(gpus, x)            x: a CuPy array, in place

NCCL finds the links between the GPUs (NVLink, PCIe, network cards) and chooses ring or tree by
itself; our transport sends only its 128-byte id, so a ledger does not see NCCL's messages. Its
kernels run on the current stream: a call returns at once, and x is complete for all later work on
that stream.

NCCL's own reduce-scatter wants equal blocks. Ours cuts as ring.py does, for any length: one reduce
for each chunk, to its owner, in one group of NCCL calls; the all-gather, one broadcast for each.

Sources: NCCL's API reference; CuPy's cupy.cuda.nccl.    Test: tests/comm/transport/test_nccl.py
"""

import numpy as np

from minidl.comm import chunks, tree
from minidl.comm.checks import check_flat, check_peer
from minidl.comm.collective import collective
from minidl.comm.transport.protocol import Wrapper

_OPS = {np.add: "SUM", np.multiply: "PROD", np.maximum: "MAX", np.minimum: "MIN"}
_DTYPES = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"}


def connect(t, cupy):
    """A transport like t, with a communicator of NCCL beside it; all ranks of t call it.

    cupy   the module, with the GPU of this rank as its current device. Two ranks on one GPU are an
           error of NCCL's."""
    if not cupy.cuda.nccl.available:
        raise RuntimeError(
            f"rank {t.rank}: this CuPy cannot load NCCL: pip install nvidia-nccl-cu12 (or -cu13, "
            "like your CuPy). Without it: device.all_reduce")
    return Nccl(t, cupy)


class Nccl(Wrapper):
    """t, and `communicator`: its ranks as NCCL knows them. A subgroup has its own."""

    def __init__(self, inner, cupy):
        super().__init__(inner)
        self.cupy = cupy
        # 128 C chars: from -128 or to 255, as the processor has it
        unique_id = np.zeros(128, np.int16)
        if self.rank == 0:
            unique_id[:] = cupy.cuda.nccl.get_unique_id()
        tree.broadcast(inner, unique_id)
        self.communicator = cupy.cuda.nccl.NcclCommunicator(
            self.size, tuple(unique_id.tolist()), self.rank)

    def around(self, inner):
        return Nccl(inner, self.cupy)


@collective
def all_reduce(t, x, op=np.add):
    """The elementwise op of all ranks' contiguous x, in place, on every rank; returns x.

    op: np.add, np.multiply, np.maximum, np.minimum. float16 is summed in float16."""
    nccl, stream = _engine(t, x)
    kinds = _dtype(t, nccl, x), _op(t, nccl, op)
    t.communicator.allReduce(x.data.ptr, x.data.ptr, x.size, *kinds, stream)
    return x


@collective
def reduce_scatter(t, x, op=np.add):
    """As `ring.reduce_scatter`: returns this rank's complete chunk, rank+1 of
    `chunks.split(x, n)`. x: 1-d, contiguous; the other chunks stay as they were."""
    nccl, stream = _engine(t, check_flat(t, x))
    kinds = _dtype(t, nccl, x), _op(t, nccl, op)
    chunk = chunks.split(x, t.size)
    nccl.groupStart()
    for c, mine in enumerate(chunk):
        if len(mine):
            owner = (c - 1) % t.size
            t.communicator.reduce(mine.data.ptr, mine.data.ptr, len(mine), *kinds, owner, stream)
    nccl.groupEnd()
    return chunk[(t.rank + 1) % t.size]


@collective
def all_gather(t, x):
    """As `ring.all_gather`: copies every rank's own chunk, rank+1 of `chunks.split(x, n)`, to all
    ranks; returns x. x: 1-d, contiguous."""
    nccl, stream = _engine(t, check_flat(t, x))
    kind = _dtype(t, nccl, x)
    nccl.groupStart()
    for c, mine in enumerate(chunks.split(x, t.size)):
        if len(mine):
            owner = (c - 1) % t.size
            t.communicator.broadcast(mine.data.ptr, mine.data.ptr, len(mine), kind, owner, stream)
    nccl.groupEnd()
    return x


@collective
def broadcast(t, x, root=0):
    """Copy root's contiguous x into every rank's x; returns x."""
    nccl, stream = _engine(t, x)
    check_peer(t, root, "root")
    t.communicator.broadcast(x.data.ptr, x.data.ptr, x.size, _dtype(t, nccl, x), root, stream)
    return x


def _engine(t, x):
    """(CuPy's nccl module, the current stream's address), once t and x are fit for NCCL."""
    if not isinstance(t, Nccl):
        raise TypeError(f"rank {t.rank}: wanted the transport of nccl.connect(t, cupy); got "
                        f"{type(t).__name__}. Wrap in this order: nccl.connect(Ledger(t), cupy)")
    if isinstance(x, np.ndarray) or not x.flags.c_contiguous:
        kind = "a NumPy array" if isinstance(x, np.ndarray) else f"strides {x.strides}"
        raise ValueError(f"rank {t.rank}: NCCL wants a contiguous array on the GPU; got {kind}. "
                         "Pass cupy.ascontiguousarray(x), and host arrays to ring.py.")
    return t.cupy.cuda.nccl, t.cupy.cuda.get_current_stream().ptr


def _dtype(t, nccl, x):
    if x.dtype.name not in _DTYPES:
        raise TypeError(
            f"rank {t.rank}: NCCL knows {', '.join(sorted(_DTYPES))}; got {x.dtype}. Cast it.")
    return getattr(nccl, f"NCCL_{x.dtype.name.upper()}")


def _op(t, nccl, op):
    if op not in _OPS:
        raise ValueError(f"rank {t.rank}: NCCL reduces with np.add, np.multiply, np.maximum or "
                         f"np.minimum; got {op}. device.all_reduce takes any.")
    return getattr(nccl, f"NCCL_{_OPS[op]}")
