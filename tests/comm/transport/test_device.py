"""Device arrays: summed like host arrays, copies beside the transfers, and no wait forgotten.

On the stand-in for CuPy, whose copies down happen as late as they may, and which finds what two
streams do to the same memory in no order."""

import ctypes
import functools
import types

import numpy as np
import pytest

from minidl.comm import ring, simulate, tree
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport import device, staging
from minidl.comm.transport.protocol import Wrapper
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.comm.cases import data, length_of
from tests.comm.transport.test_nccl import on_gpus
from tests.conftest import ranks
from tests.devices import Direct
from tests.mpi.launch import mpiexec

pytestmark = pytest.mark.usefixtures("strict_cupy")
ranks = functools.partial(ranks, mpi=False)  # processes: tests/mpi/test_device_arrays.py
LENGTHS = [0, 1, "n-1", "n", "n+1", 1009]


def total(t, length, dtype="f4"):
    """What the ring gives for host arrays of the same ranks: the same additions, the same bits."""
    return ring.all_reduce(t, data(t.rank, length, dtype))


def on_device(values):
    """A device array whose values the current stream computes."""
    import cupy

    return cupy.asarray(values) * cupy.ones((), values.dtype)


@pytest.fixture
def trace(strict_cupy, monkeypatch):
    """What is queued and what the host has waited for: "queue down 0", "run down 0"; numbers are
    bytes into the array that was given."""
    from cupy import _memory, _streams

    lines, label, later = [], [], _streams.later

    def named(name, copy):
        def run(x, pointer, size, queue):
            whole = x if x.base is None else x.base
            label[:] = [f"{name} {x._a.ctypes.data - whole._a.ctypes.data}"]
            lines.append(f"queue {label[0]}")
            copy(x, pointer, size, queue)

        monkeypatch.setattr(_memory, copy.__name__, run)

    named("down", _memory.download)
    named("up", _memory.upload)
    monkeypatch.setattr(_streams, "later", lambda queue, n, work, label=label: later(
        queue, n, lambda now=label[0]: (lines.append(f"run {now}"), work())))
    return lines


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_staged_in_one_segment_gives_the_ring_s_bits(t, length):
    length = length_of(length, t.size)
    x = on_device(data(t.rank, length))
    assert device.staged_all_reduce(t, x) is x
    assert (x.get() == total(t, length)).all()


@pytest.mark.parametrize("segment_bytes", [1, 4, 40, 43, 404, 405])
@ranks(1, 2, 3)
def test_staged_in_segments_reduces_each_of_them(t, segment_bytes):
    n = 101  # a prime: the last segment is shorter
    x = on_device(data(t.rank, n))
    ledger = Ledger(t)
    device.staged_all_reduce(ledger, x, segment_bytes=segment_bytes)
    per_segment = max(1, segment_bytes // 4)
    pieces = np.split(data(t.rank, n), range(per_segment, n, per_segment))
    assert (x.get() == np.concatenate([ring.all_reduce(t, piece) for piece in pieces])).all()
    count = ledger.count(label="device.staged_all_reduce")
    assert count.messages_sent == len(pieces) * 2 * (t.size - 1)
    formula = sum(ring.bytes_sent(len(p), 4, t.size, t.rank) for p in pieces)
    assert count.bytes_sent == formula == ledger.bytes_sent


@pytest.mark.parametrize("op, dtype", [(np.maximum, "f8"), (np.multiply, "i8"), (np.minimum, "f2")])
@ranks(3)
def test_any_operation_dtype_and_algorithm(t, op, dtype):
    values = data(t.rank, 60, dtype).reshape(3, 4, 5)
    x = on_device(values)
    device.staged_all_reduce(t, x, op, all_reduce=tree.all_reduce, segment_bytes=64)
    assert x.shape == (3, 4, 5) and (x.get() == naive.all_reduce(t, values, op)).all()


def test_a_segment_is_summed_while_its_neighbours_are_copied(trace):
    log = trace

    def all_reduce(t, host, op):
        log.append("all-reduce")

    def body(t):
        x = on_device(data(t.rank, 40))
        device.staged_all_reduce(t, x, all_reduce=all_reduce, segment_bytes=40)
        return list(log)

    for trace in simulate(1, body):
        # In the order of the stream: D0 D1 U0 D2 U1 D3 U2 U3; numbers are bytes into x.
        assert [line for line in trace if line.startswith("queue")] == [
            *("queue down 0", "queue down 40", "queue up 0", "queue down 80"),
            *("queue up 40", "queue down 120", "queue up 80", "queue up 120"),
        ]
        for i in range(4):
            place = [k for k, line in enumerate(trace) if line == "all-reduce"][i]
            before = trace[:place]
            assert f"run down {40 * i}" in before, "it is here"
            if i < 3:
                assert f"queue down {40 * (i + 1)}" in before, "the next is on its way meanwhile"
                assert f"run down {40 * (i + 1)}" not in before, "and was not waited for"
            if i > 0:
                assert f"queue up {40 * (i - 1)}" in before, "the last goes back meanwhile"
                assert f"run up {40 * (i - 1)}" not in before, "and was not waited for"
        assert "run up 120" not in trace, "work that follows on the stream waits, and not the host"


@pytest.mark.parametrize(
    "n_bytes, buffers", [(0, [1]), (400, [400]), (4096, [4096]), (9000, [4096, 4096])]
)
def test_never_more_than_two_pinned_buffers_of_a_segment(n_bytes, buffers):
    def body(t):
        import cupy

        asked = []
        x = on_device(np.ones(n_bytes, np.uint8))
        alloc = cupy.cuda.alloc_pinned_memory
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cupy.cuda, "alloc_pinned_memory", lambda n: asked.append(n) or alloc(n))
            device.staged_all_reduce(t, x, segment_bytes=4096)
        return asked

    assert simulate(1, body) == [buffers]


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5)
def test_direct_gives_the_ring_s_bits_and_bytes(t, length):
    length = length_of(length, t.size)
    ledger = Ledger(t)
    x = on_device(data(t.rank, length))
    assert device.all_reduce(Direct(ledger), x) is x
    assert (x.get() == total(t, length)).all()
    assert ledger.bytes_sent == ring.bytes_sent(length, 4, t.size, t.rank)


def test_direct_waits_for_the_kernels_that_write_a_message_or_read_its_buffer(trace):
    """Once for each message, and copies nothing."""
    import cupy

    def body(t):
        x = on_device(data(t.rank, 13))
        tree.broadcast(Direct(t), x)  # a rank only sends, or only receives
        return x

    with cupy.stand_in.counting() as count:
        sums = simulate(3, body)
    assert sum(count.waits.values()) == 2 + 2 and trace == [], count  # 2 messages, at both ends
    assert all((x.get() == data(0, 13)).all() for x in sums)


@ranks(2)
def test_a_host_array_takes_the_ring(t):
    for all_reduce in (device.all_reduce, device.staged_all_reduce):
        assert (all_reduce(t, data(t.rank, 11)) == total(t, 11)).all()


def test_a_transport_without_mpi_is_staged(trace):
    def body(t):
        device.all_reduce(Ledger(t), on_device(data(t.rank, 5)))
        return Ledger(t).cuda_aware

    assert simulate(2, body) == [False] * 2 and trace[0] == "queue down 0"


@pytest.mark.parametrize("answer", [0, 1])
def test_the_mpi_library_is_asked(answer):
    library = types.SimpleNamespace(MPIX_Query_cuda_support=lambda: answer)
    assert staging.says_cuda_aware(library) == bool(answer)


def test_a_library_without_the_question_is_not_cuda_aware():
    assert staging.says_cuda_aware(ctypes.CDLL(None)) is False


FACTS = [("GPU 0 of a", True, False), ("GPU 1 of a", True, False), ("GPU 0 of b", True, False)]


@pytest.mark.parametrize("facts, why", [
    (FACTS, None),
    (FACTS[:1], "there is only one rank"),
    ([*FACTS, FACTS[1]], "ranks 1, 3 share GPU 1 of a, but NCCL wants one for each"),
    ([*FACTS, ("GPU 1 of b", False, False)], "cannot load NCCL on rank 3 (pip install")])
def test_nccl_wants_a_gpu_for_every_rank(facts, why):
    got = device.why_no_nccl(facts)
    assert got is None if why is None else why in got


@pytest.mark.parametrize("nccl, aware, way", [
    (True, True, "NCCL: a GPU for every rank"),
    (False, True, "directly: {} reads device memory. No NCCL: CuPy cannot load NCCL on rank 0"),
    (False, False, "staged through pinned memory: {} is not CUDA-aware. No NCCL: CuPy cannot")])
def test_the_best_way_is_chosen_and_said(nccl, aware, way, monkeypatch):
    """Alike on all ranks, if one of them cannot."""
    monkeypatch.setattr(device.nccl, "available",
                        lambda cupy: nccl or cupy.cuda.get_device_id() > 0)

    class Network(Wrapper):  # not simulated, as far as `connect` knows
        cuda_aware = aware

    def body(t):
        with on_gpus(t) as cupy:
            network = Network(t)
            network.simulated = False
            x = cupy.asarray(np.ones(3))
            best, said = device.connect(network, x)
            assert said.startswith(way.format("simulator"))
            assert (best is network) == (not nccl)
            assert device.connect(best, x)[1].startswith("NCCL") == nccl
            assert device.connect(network, np.ones(3)) == (network, "host memory")
            assert "simulated" in device.connect(t, x)[1]

    simulate(3, body)


def test_a_watch_compares_device_arrays():
    def body(t):
        device.all_reduce(Watch(t), on_device(np.ones(10 + t.rank)))

    with pytest.raises(RankFailed, match=r"x is float64 \(10,\) on rank 0, float64 \(11,\) on"):
        simulate(2, body)


def test_what_is_not_contiguous_is_refused():
    def body(t):
        device.staged_all_reduce(t, on_device(np.ones((4, 4)))[:, 1])

    with pytest.raises(RankFailed, match="rank 0.*cupy.ascontiguousarray"):
        simulate(2, body)


@pytest.mark.gpu
@pytest.mark.parametrize("segment_bytes", [1 << 10, 1 << 20, device.SEGMENT_BYTES])
@ranks(2, mpi=False)  # two ranks on one GPU, in one process
def test_on_a_gpu(t, segment_bytes):
    import cupy

    n = 1_000_003
    x = cupy.asarray(data(t.rank, n))
    x *= 2  # still under computation when the copies are queued
    device.staged_all_reduce(t, x, np.maximum, segment_bytes=segment_bytes)
    assert (cupy.asnumpy(x) == np.maximum(data(0, n) * 2, data(1, n) * 2)).all()


RANK_ON_A_GPU = """
import cupy, numpy as np
from minidl.comm import world
from minidl.comm.transport import device
t = world()
x = cupy.arange(100_003, dtype=np.float64)
x *= t.rank + 1
device.all_reduce(t, x)
assert (cupy.asnumpy(x) == 3 * np.arange(100_003)).all()
print("rank", t.rank, "cuda aware:", t.cuda_aware)
"""


@pytest.mark.gpu
@pytest.mark.mpi
def test_on_a_gpu_under_mpi_the_way_that_the_mpi_allows(tmp_path):
    script = tmp_path / "rank_on_a_gpu.py"
    script.write_text(RANK_ON_A_GPU)
    done = mpiexec(2, "-m", "minidl.cli.rank", script, timeout=60, check=True)
    assert done.stdout.count("cuda aware:") == 2
