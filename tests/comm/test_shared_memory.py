"""Shared memory: the naive sum's own bits, the bytes of its formula, and halves that take turns."""

import numpy as np
import pytest

from minidl.comm import cost, shared_memory, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.shared_memory import WHOLE_BYTES
from minidl.comm.transport.links import Links
from minidl.comm.transport.scheduler import RankFailed
from minidl.comm.transport.window import NoSharedMemory
from minidl.plain import naive
from tests.comm.cases import DTYPES, bits_agree, data
from tests.conftest import ranks

CHUNK_BYTES = 96 << 10  # small segments: many of them in a short test
LENGTHS = [0, 1, "n-1", "n", "n+1", 1009, "whole", "whole+1", "segments", "ragged"]


def segment_bytes(n):
    return shared_memory.segment_bytes(n, CHUNK_BYTES)


def all_reduce(t, x, op=np.add):
    return shared_memory.all_reduce(t, x, op, chunk_bytes=CHUNK_BYTES)


def bytes_read(*args):
    return shared_memory.bytes_read(*args, CHUNK_BYTES)


def length_of(length, n, itemsize=4):
    whole, segment = WHOLE_BYTES // (n * itemsize), segment_bytes(n) // itemsize
    names = {"n-1": n - 1, "n": n, "n+1": n + 1, "whole": whole, "whole+1": whole + 1}
    # three segments need both halves twice; the ragged one ends in a segment of fewer than n
    names |= {"segments": 3 * segment, "ragged": 2 * segment + n - 1}
    return names.get(length, length)


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_the_bits_are_those_of_the_naive_sum(t, length):
    # values of very different size, so that another order of summing gives other bits
    x = data(t.rank, length_of(length, t.size), "f4") * np.float32(10) ** (t.rank % 4 * 3)
    want = naive.all_reduce(t, x.copy())
    got = all_reduce(t, x)
    assert (got == want).all() and (x == want).all()  # in place
    assert bits_agree(t, got)


@pytest.mark.parametrize("dtype", [*DTYPES, "c16"])
@ranks(1, 2, 3, 4, 5, 8)
def test_every_dtype_and_shape(t, dtype):
    x = data(t.rank, 60, dtype).reshape(3, 4, 5)
    want = naive.all_reduce(t, x.copy())
    assert (all_reduce(t, x.copy()) == want).all()
    strided = x.transpose(2, 0, 1)
    kept = strided.copy()
    assert (all_reduce(t, strided) == want.transpose(2, 0, 1)).all()
    assert (strided == kept).all()  # a strided argument is left alone
    scalar = np.array(t.rank + 1.0)
    assert all_reduce(t, scalar).shape == ()
    assert scalar == t.size * (t.size + 1) / 2


@pytest.mark.parametrize("op", [np.maximum, np.minimum, np.multiply])
@pytest.mark.parametrize("length", [1009, "ragged"])
@ranks(1, 2, 3, 4, 5, 8)
def test_other_operations_equal_the_naive_result(t, op, length):
    x = data(t.rank, length_of(length, t.size, 8), "i8")
    assert (all_reduce(t, x.copy(), op) == naive.all_reduce(t, x, op)).all()


@ranks(2, 3, 5)
def test_calls_of_all_lengths_follow_each_other(t):
    # Both ways, short and long, use the same halves, after 1, 2 and 3 segments, and some ranks come
    # late. A half that is used again too early would show here.
    segment, whole = segment_bytes(t.size) // 4, length_of("whole", t.size)
    longs = [segment, 2 * segment + 1, 3 * segment - 1, segment + 2]
    lengths = [length for long in longs for length in (long, whole)] + [5, *longs, 0, 11, whole]
    lengths += [segment, segment // 2 + 2000, segment, 3 * segment, segment // 2 + 2000]  # one half
    for call, length in enumerate(lengths):
        inputs = [(np.arange(length) % 251 + call + r * r).astype("f4") for r in range(t.size)]
        if call % t.size == t.rank:
            t.compute(1e-3)  # late on the modelled clock
            np.ones((300, 300)) @ np.ones((300, 300))  # and on a measured one
        want = sum(inputs)  # small whole numbers: exact in any order
        assert (all_reduce(t, inputs[t.rank].copy()) == want).all()


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_equal_the_formula_for_every_pair(t, length):
    n, length = t.size, length_of(length, t.size)
    ledger = Ledger(t)
    all_reduce(ledger, np.ones(length, "f4"))
    assert set(ledger.rows) <= {r for r in ledger.rows if r.label == "shared_memory.all_reduce"}
    for peer in range(n):
        count, me = ledger.count(peer=t.ranks[peer]), t.rank
        if peer == me:
            assert count.bytes_received == count.bytes_sent == 0
            continue
        assert count.bytes_received == bytes_read(length, 4, n, me, peer)
        assert count.bytes_sent == bytes_read(length, 4, n, peer, me)
        assert count.messages_sent == count.messages_received == 0


def test_golden_bytes():
    # 10 elements on 3 ranks go whole; one segment of 4 ranks has four equal chunks of K/4
    assert bytes_read(10, 4, 3, 0, 2) == 40
    length = segment_bytes(4) // 4
    assert bytes_read(length, 4, 4, 1, 2) == 2 * (length // 4) * 4
    # in sum over ordered pairs every chunk is read n-1 times to add it and n-1 times to copy it
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    length = segment_bytes(3) // 4 + 5
    assert sum(bytes_read(length, 4, 3, *p) for p in pairs) == 2 * 2 * length * 4


@pytest.mark.parametrize("segments", [0, 1, 2, 5])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_modelled_time_is_the_formula(n, segments):
    length = segments * segment_bytes(n) // 4 or 1000

    def body(t):
        all_reduce(t, np.ones(length, "f4"))
        return t.time()

    alpha, beta = 1e-6, 1e-10
    want = cost.shared_memory_all_reduce(n, 4 * length, alpha, beta, segments=segments)
    times = simulate(n, body, alpha=alpha, beta=beta)
    np.testing.assert_allclose(times, want.time_s, rtol=1e-12)  # rounding of some 30 additions


@pytest.mark.parametrize("lengths", [(3, 4), (1000, 300000), (300000, 1000), (300000, 300001)])
def test_unequal_sizes_are_an_error_that_names_both(lengths):
    def body(t):
        all_reduce(t, np.ones(lengths[t.rank], "f4"))

    with pytest.raises(RankFailed, match="shared_memory.all_reduce needs the same size") as caught:
        simulate(2, body)
    assert isinstance(caught.value.__cause__, SizeMismatch)
    assert all(str(4 * length) in str(caught.value) for length in lengths)


@ranks(2, 3, 4)
def test_every_rank_sees_that_one_has_another_size(t):
    group = t.subgroup(range(t.size))  # a window of its own: after an error nobody uses it again
    with pytest.raises(SizeMismatch, match="same size"):
        all_reduce(group, np.ones(40 + (t.rank == 1)))


def test_ranks_of_two_nodes_do_not_share_memory():
    links = Links.nodes(2, (1e-6, 1e-10), (5e-5, 1e-8))

    def body(t):
        with pytest.raises(NoSharedMemory, match="one node"):
            all_reduce(t, np.ones(3))
        node = t.subgroup([0, 1] if t.rank < 2 else [2, 3])
        across = t.subgroup([t.rank % 2, t.rank % 2 + 2])
        with pytest.raises(NoSharedMemory, match="one node"):
            all_reduce(across, np.ones(3))
        return all_reduce(node, np.ones(3))[0]

    assert simulate(4, body, links=links) == [2, 2, 2, 2]


@ranks(2, 3, 4)
def test_groups_have_windows_of_their_own(t):
    other = t.subgroup(range(t.size - 1, -1, -1))
    assert t.shared(64) is t.shared(64) and t.shared(64) is not other.shared(64)
    x, y = np.full(9, t.rank), np.full(9, 10 * t.rank)
    for _ in range(3):
        total = t.size * (t.size - 1) // 2
        assert (all_reduce(t, x.copy()) == total).all()
        assert (all_reduce(other, y.copy()) == 10 * total).all()


@ranks(2, 3)
def test_a_background_task_may_use_it_beside_its_rank(t):
    mine, task = t.subgroup(range(t.size)), t.subgroup(range(t.size))
    length = segment_bytes(t.size)
    for group in (mine, task):
        all_reduce(group, np.ones(1))  # the windows are made one after the other: transport.py

    def background():
        return [all_reduce(task, np.ones(length, "f4"))[0] for _ in range(3)]

    handle = t.spawn(background)
    here = [all_reduce(mine, np.ones(length, "f4"))[0] for _ in range(3)]
    assert here == handle.wait() == [t.size] * 3


def test_a_segment_is_a_chunk_for_each_rank_as_long_as_half_the_window_holds_it():
    half, chunk = shared_memory.HALF_BYTES, shared_memory.CHUNK_BYTES
    for n in (1, 2, 3, half // chunk):
        assert shared_memory.segment_bytes(n) == n * chunk
    assert shared_memory.segment_bytes(half // chunk + 1) == half


@pytest.mark.parametrize("halves, more", [(1, -1), (1, 0), (1, 1), (3, 1009)])
@ranks(2, 3)
def test_an_array_longer_than_the_window_goes_through_it_in_turns(t, halves, more):
    """HALF_BYTES is the most that fits: arrays around it and beyond, with the default chunks."""
    length = halves * shared_memory.HALF_BYTES // 8 + more
    x = np.arange(length) + float(t.rank)
    got = shared_memory.all_reduce(t, x)
    step = max(1, length // 1000)
    want = t.size * np.arange(0, length, step) + t.size * (t.size - 1) / 2
    assert (got[::step] == want).all() and got[-1] == t.size * (length - 1) + (
        t.size * (t.size - 1) / 2)
