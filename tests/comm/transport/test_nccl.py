"""NCCL behind the calls of ring.py and tree.py: the same results, chunks and owners.

On the stand-in for CuPy, a device for each simulated rank; on a GPU one rank alone."""

import contextlib

import numpy as np
import pytest

from minidl.comm import average, chunks, ring, ring_blocks, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport import nccl
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.conftest import ranks

pytestmark = pytest.mark.usefixtures("strict_cupy")


def data(rank, length, dtype="i8"):
    """Whole numbers: sums are exact in any order."""
    return np.random.default_rng([rank, length]).integers(1, 9, length).astype(dtype)


@contextlib.contextmanager
def on_gpus(t):
    """CuPy, with a device of this rank's own, and NCCL between the ranks of t."""
    import cupy

    cupy.cuda.Device(t.rank).use()
    with cupy.stand_in.nccl_over(t):
        yield cupy


@contextlib.contextmanager
def connected(t, inner=None):
    """(the transport with NCCL, CuPy)."""
    with on_gpus(t) as cupy:
        yield nccl.connect(inner or t, cupy), cupy


@pytest.mark.parametrize("op", [np.add, np.multiply, np.maximum, np.minimum])
@ranks(1, 2, 3, 4, mpi=False)
def test_all_reduce(t, op):
    values = data(t.rank, 35).reshape(5, 7)
    wanted = naive.all_reduce(t, values.copy(), op)
    with connected(t) as (gpus, cupy):
        x = cupy.asarray(values)
        assert nccl.all_reduce(gpus, x, op) is x
        assert (x.get() == wanted).all()


def test_no_rank_waits_for_its_device():
    import cupy

    def body(t):
        with connected(t) as (gpus, cupy):
            x = cupy.ones(10, np.float32)
            nccl.mean_block(gpus, x, chunks.bounds(10, t.size))
            nccl.gather_blocks(gpus, x, chunks.bounds(10, t.size))
            return nccl.all_reduce(gpus, x)

    with cupy.stand_in.counting() as count:
        sums = simulate(3, body)
    assert not count.waits and not count.uploads and count.launches["nccl.allReduce"] == 3
    for x in sums:
        with x.device:
            assert (x.get() == 3).all()


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 101])
@ranks(1, 2, 3, 4, mpi=False)
def test_reduce_scatter_and_all_gather_cut_and_own_as_the_ring(t, length):
    with connected(t) as (gpus, cupy):
        x = cupy.asarray(data(t.rank, length))
        mine = nccl.reduce_scatter(gpus, x)
        wanted = ring.reduce_scatter(t, data(t.rank, length))
        assert (mine.get() == wanted).all() and len(mine) == len(wanted)
        # the others' chunks are as they were
        others = np.ones(length, bool)
        others[slice(*chunks.bounds(length, t.size)[(t.rank + 1) % t.size :][:2])] = False
        assert (x.get() == data(t.rank, length))[others].all()
        assert nccl.all_gather(gpus, x) is x
        assert (x.get() == naive.all_reduce(t, data(t.rank, length))).all()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@ranks(1, 2, 3, 4, mpi=False)
def test_blocks_of_any_length_as_the_ring_of_blocks(t, dtype):
    """Whole numbers: float16 sums are exact, too. Rank 1's block is empty."""
    with connected(t) as (gpus, cupy), cupy.stand_in.counting() as count:
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
    # float16 travels in 2 bytes, and is summed here
    assert ("nccl.reduce" in count.launches) == (dtype != "f2")
    assert ("nccl.send" in count.launches) == (dtype == "f2" and t.size > 1)


@ranks(1, 2, 3, 4, mpi=False)
def test_broadcast_from_every_root(t):
    with connected(t) as (gpus, cupy):
        for root in range(t.size):
            x = cupy.asarray(data(t.rank, 13, "f4"))
            nccl.broadcast(gpus, x, root)
            assert (x.get() == data(root, 13, "f4")).all()


@ranks(4, mpi=False)
def test_a_subgroup_has_a_communicator_of_its_own(t):
    with connected(t) as (gpus, cupy):
        pair = gpus.subgroup([1, 3])
        assert (pair is None) == (t.rank in (0, 2))
        if pair is not None:
            x = cupy.asarray(data(t.rank, 5))
            assert (nccl.all_reduce(pair, x).get() == data(1, 5) + data(3, 5)).all()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "u4", "i8", "u8"])
@ranks(2, mpi=False)
def test_every_dtype_of_nccl(t, dtype):
    with connected(t) as (gpus, cupy):
        x = cupy.asarray(data(t.rank, 9, dtype))
        nccl.all_reduce(gpus, x)
        assert (x.get() == naive.all_reduce(t, data(t.rank, 9, dtype))).all()


@ranks(2, 3, 4, mpi=False)
def test_a_ledger_counts_the_id_and_nothing_else(t):
    """What NCCL moves, it moves by itself: a tree of 128 bytes is all that our transport sends."""
    ledger = Ledger(t)
    with connected(t, ledger) as (gpus, cupy):
        wanted = ledger.bytes_sent
        assert naive.all_reduce(t, np.array([wanted])) == 128 * (t.size - 1)
        for call in (nccl.all_reduce, nccl.reduce_scatter, nccl.all_gather, nccl.broadcast):
            call(gpus, cupy.asarray(data(t.rank, 11)))
        assert ledger.bytes_sent == wanted


def test_wrong_sizes_are_named_before_nccl_hangs():
    def body(t):
        with connected(t, Watch(t)) as (gpus, cupy):
            nccl.all_reduce(gpus, cupy.asarray(np.ones(10 + t.rank)))

    with pytest.raises(RankFailed, match=r"x is float64 \(10,\) on rank 0, float64 \(11,\) on"):
        simulate(2, body)


def test_without_a_watch_they_are_an_error_of_the_stand_in():
    def body(t):
        with connected(t) as (gpus, cupy):
            nccl.all_reduce(gpus, cupy.asarray(np.ones(10 + t.rank)))

    with pytest.raises(RankFailed, match="NCCL: the ranks call"):
        simulate(2, body)


def test_two_ranks_want_two_gpus():
    def body(t):
        import cupy

        with cupy.stand_in.nccl_over(t):
            nccl.connect(t, cupy)

    with pytest.raises(RankFailed, match="ranks on one GPU"):
        simulate(2, body)


def test_a_result_is_not_read_on_a_stream_that_does_not_wait_for_it():
    """Negative control: what the stand-in says of a missing event."""
    def body(t):
        with connected(t) as (gpus, cupy):
            x = cupy.asarray(np.ones(10))
            nccl.all_reduce(gpus, x)
            with cupy.cuda.Stream(non_blocking=True):
                x + 1

    with pytest.raises(RankFailed, match="no event and no wait puts one before the other"):
        simulate(2, body)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda t, gpus, cupy: nccl.all_reduce(t, cupy.asarray(np.ones(3))), "nccl.connect"),
        (lambda t, gpus, cupy: nccl.all_reduce(gpus, np.ones(3)), "got a NumPy array"),
        (lambda t, gpus, cupy: nccl.broadcast(gpus, cupy.asarray(np.ones(9))[::2]), "strides"),
        (lambda t, gpus, cupy: nccl.all_reduce(gpus, cupy.asarray(np.ones(3, bool))), "Cast x"),
        (lambda t, gpus, cupy: nccl.all_reduce(gpus, cupy.asarray(np.ones(3)), np.hypot), "ops"),
        (lambda t, gpus, cupy: nccl.all_gather(gpus, cupy.asarray(np.ones((3, 3)))), "reshape"),
    ],
    ids=["plain transport", "host array", "strided", "dtype", "op", "2-d"],
)
def test_errors_name_the_remedy(call, words):
    def body(t):
        with connected(t) as (gpus, cupy):
            call(t, gpus, cupy)

    with pytest.raises(RankFailed, match=f"rank 0.*{words}"):
        simulate(1, body)


def test_a_cupy_without_nccl_says_what_to_install(monkeypatch):
    import cupy.cuda.nccl

    monkeypatch.setattr(cupy.cuda.nccl, "available", False)
    with pytest.raises(RankFailed, match="pip install nvidia-nccl.*device.all_reduce"):
        simulate(1, lambda t: nccl.connect(t, cupy))


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
