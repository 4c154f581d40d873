"""NCCL behind the calls of ring.py and tree.py: the same results, chunks and owners."""

from types import SimpleNamespace

import numpy as np
import pytest

from minidl.comm import average, chunks, naive, ring, ring_blocks, simulate
from minidl.comm.transport import nccl
from minidl.comm.transport.scheduler import RankFailed
from tests.comm.transport import fake_cupy
from tests.conftest import ranks


def data(rank, length, dtype="i8"):
    """Whole numbers: sums are exact in any order."""
    return np.random.default_rng([rank, length]).integers(1, 9, length).astype(dtype)


def connect(t):
    cupy = fake_cupy.make(nccl_over=t)
    return nccl.connect(t, cupy), cupy


@pytest.mark.parametrize("op", [np.add, np.multiply, np.maximum, np.minimum])
@ranks(1, 2, 3, 4)
def test_all_reduce(t, op):
    gpus, cupy = connect(t)
    values = data(t.rank, 35).reshape(5, 7)
    x = cupy.on_device(values.copy())
    assert nccl.all_reduce(gpus, x, op) is x
    assert (x.host == naive.all_reduce(t, values, op)).all()
    assert cupy.trace == ["allReduce"]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 101])
@ranks(1, 2, 3, 4, 5)
def test_reduce_scatter_and_all_gather_cut_and_own_as_the_ring(t, length):
    gpus, cupy = connect(t)
    x = cupy.on_device(data(t.rank, length))
    mine = nccl.reduce_scatter(gpus, x)
    wanted = ring.reduce_scatter(t, data(t.rank, length))
    assert (mine.host == wanted).all() and len(mine) == len(wanted)
    # the others' chunks are as they were
    others = np.ones(length, bool)
    others[slice(*chunks.bounds(length, t.size)[(t.rank + 1) % t.size :][:2])] = False
    assert (x.host == data(t.rank, length))[others].all()
    assert nccl.all_gather(gpus, x) is x
    assert (x.host == naive.all_reduce(t, data(t.rank, length))).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@ranks(1, 2, 3, 5, mpi=False)
def test_blocks_of_any_length_as_the_ring_of_blocks(t, dtype):
    """Whole numbers: float16 sums are exact, too. Rank 1's block is empty."""
    import cupy

    current, trace = cupy.cuda.get_current_stream(), []
    ours = SimpleNamespace(empty=cupy.empty, cuda=SimpleNamespace(
        nccl=fake_cupy.make_nccl(t, current, trace), get_current_stream=lambda: current))
    gpus = nccl.connect(t, ours)
    for length in (0, 1, 3, 4, 5, 101):
        bounds = chunks.bounds(length, t.size)
        if t.size > 2:
            bounds[2] = bounds[1]
        x = cupy.asarray(data(t.rank, length, dtype))
        own = nccl.mean_block(gpus, x, bounds)
        wanted = average.mean_block(t, data(t.rank, length, dtype), bounds)
        np.testing.assert_array_equal(own.get(), wanted, strict=True)
        assert nccl.gather_blocks(gpus, x, bounds) is x
        whole, _ = ring_blocks.all_gather_v(t, wanted)
        np.testing.assert_array_equal(x.get(), whole)
    assert ("reduce" in trace) == (dtype != "f2")  # which travels in 2 bytes, and is summed here


@ranks(1, 2, 3, 4)
def test_broadcast_from_every_root(t):
    gpus, cupy = connect(t)
    for root in range(t.size):
        x = cupy.on_device(data(t.rank, 13, "f4"))
        nccl.broadcast(gpus, x, root)
        assert (x.host == data(root, 13, "f4")).all()


@ranks(4)
def test_a_subgroup_has_a_communicator_of_its_own(t):
    gpus, _ = connect(t)
    made = gpus.cupy.cuda.nccl.NcclCommunicator
    sizes = []

    def spy(n_ranks, unique_id, rank):
        sizes.append((n_ranks, rank))
        return None

    gpus.cupy.cuda.nccl.NcclCommunicator = spy
    pair = gpus.subgroup([1, 3])
    assert sizes == ([] if pair is None else [(2, pair.rank)])
    assert made is not spy and (pair is None) == (t.rank in (0, 2))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "u4", "i8", "u8"])
@ranks(2)
def test_every_dtype_of_nccl(t, dtype):
    gpus, cupy = connect(t)
    x = cupy.on_device(data(t.rank, 9, dtype))
    nccl.all_reduce(gpus, x)
    assert (x.host == naive.all_reduce(t, data(t.rank, 9, dtype))).all()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda t, gpus, cupy: nccl.all_reduce(t, cupy.on_device(np.ones(3))), "nccl.connect"),
        (lambda t, gpus, cupy: nccl.all_reduce(gpus, np.ones(3)), "got a NumPy array"),
        (lambda t, gpus, cupy: nccl.broadcast(gpus, cupy.on_device(np.ones(9)[::2])), "strides"),
        (lambda t, gpus, cupy: nccl.all_reduce(gpus, cupy.on_device(np.ones(3, bool))), "Cast it"),
        (lambda t, gpus, cupy: nccl.all_reduce(gpus, cupy.on_device(np.ones(3)), np.hypot), "any"),
        (lambda t, gpus, cupy: nccl.all_gather(gpus, cupy.on_device(np.ones((3, 3)))), "reshape"),
    ],
    ids=["plain transport", "host array", "strided", "dtype", "op", "2-d"],
)
def test_errors_name_the_remedy(call, words):
    with pytest.raises(RankFailed, match=f"rank 0.*{words}"):
        simulate(1, lambda t: call(t, *connect(t)))


def test_a_cupy_without_nccl_says_what_to_install():
    def body(t):
        cupy = fake_cupy.make(nccl_over=t)
        cupy.cuda.nccl.available = False
        nccl.connect(t, cupy)

    with pytest.raises(RankFailed, match="pip install nvidia-nccl.*device.all_reduce"):
        simulate(1, body)


@pytest.mark.gpu
@ranks(1, mpi=False)  # NCCL refuses two ranks on one GPU
def test_one_rank_on_a_gpu(t):
    import cupy
    import cupy.cuda.nccl  # not there before

    if not nccl.available(cupy):
        pytest.skip("this CuPy has no NCCL: pip install nvidia-nccl-cu12 or -cu13")
    gpus = nccl.connect(t, cupy)
    x = cupy.arange(11, dtype=np.float32)
    for call in (nccl.all_reduce, nccl.reduce_scatter, nccl.all_gather, nccl.broadcast):
        assert (cupy.asnumpy(call(gpus, x)) == np.arange(11)).all()
