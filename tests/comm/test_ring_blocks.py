"""Blocks of any length on the ring: rank r owns block r, with the ring's bits and bytes."""

import numpy as np
import pytest

from minidl.comm import chunks, cost, ring, ring_blocks, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.comm.cases import data, length_of
from tests.conftest import ranks

DTYPES = ["f2", "f4", "f8", "i4", "i8", "?"]
LENGTHS = [0, 1, "n-1", "n", "n+1", 1009]  # the last is a prime


def uneven(n):
    """Bounds whose blocks have very different lengths; with 3 ranks and more some are empty."""
    return [0, *np.cumsum([r * r % 7 * (r % 3 != 1) + (r == n - 1) for r in range(n)]).tolist()]


def in_ring_order(parts, first, op=np.add):
    """((parts[first] op parts[first+1]) op ...) around the ring."""
    total = parts[first % len(parts)].copy()
    for i in range(1, len(parts)):
        op(total, parts[(first + i) % len(parts)], out=total)
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_block_r_is_summed_onto_rank_r_from_its_right_neighbour_on(t, dtype):
    for bounds in (uneven(t.size), *(chunks.bounds(k, t.size) for k in (0, 1, t.size, 37))):
        inputs = [data(rank, bounds[-1], dtype) for rank in range(t.size)]
        x = inputs[t.rank].copy()
        own = ring_blocks.reduce_scatter(t, x, bounds)
        here = slice(bounds[t.rank], bounds[t.rank + 1])
        assert np.may_share_memory(own, x) or not len(own)
        expected = in_ring_order([i[here] for i in inputs], t.rank + 1)
        assert own.dtype == dtype and (own == expected).all()  # bit for bit


@pytest.mark.parametrize("op", [np.maximum, np.minimum, np.multiply])
@ranks(1, 2, 3, 4, 5, 8)
def test_other_operations_equal_the_naive_result(t, op):
    bounds = uneven(t.size)
    x = data(t.rank, bounds[-1], "i8")
    whole = naive.all_reduce(t, x.copy(), op)
    own = ring_blocks.reduce_scatter(t, x.copy(), bounds, op)
    assert (own == whole[bounds[t.rank] : bounds[t.rank + 1]]).all()
    assert (ring_blocks.all_reduce(t, x, op) == whole).all()


@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_all_gather_spreads_the_blocks(t, dtype):
    bounds = uneven(t.size)
    whole = data(0, bounds[-1], dtype)
    x = data(99, bounds[-1], dtype)
    here = slice(bounds[t.rank], bounds[t.rank + 1])
    x[here] = whole[here]
    assert ring_blocks.all_gather(t, x, bounds) is x and (x == whole).all()


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_has_the_bits_of_reduce_scatter(t, length):
    # float32 values of very different size: another order gives other bits.
    length = length_of(length, t.size)
    x = data(t.rank, length, "f4") * np.float32(10.0 ** (t.rank % 4 * 3))
    bounds = chunks.bounds(length, t.size)
    scattered = x.copy()
    ring_blocks.reduce_scatter(t, scattered, bounds)
    expected = ring_blocks.all_gather(t, scattered, bounds)
    ring_blocks.all_reduce(t, x)
    assert (x == expected).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_it_is_the_ring_with_its_chunks_renamed(t):
    # With the last block moved to the front, chunk r+1 of ring.py is block r: the same bits.
    x = data(t.rank, 6 * t.size, "f4") * np.float32(10.0 ** (t.rank % 4 * 3))
    renamed = ring.all_reduce(t, np.roll(x, 6))
    own = ring_blocks.reduce_scatter(t, x, chunks.bounds(len(x), t.size))
    assert (own == chunks.split(renamed, t.size)[(t.rank + 1) % t.size]).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_and_messages_equal_the_formula(t):
    n, r, bounds = t.size, t.rank, uneven(t.size)
    size = np.diff(bounds) * 4
    ledger = Ledger(t)
    ring_blocks.reduce_scatter(ledger, np.ones(bounds[-1], "f4"), bounds)
    assert ledger.count(label="ring_blocks.reduce_scatter") == ledger.count()
    assert (ledger.bytes_sent, ledger.messages_sent) == (size.sum() - size[r], n - 1)
    assert ledger.bytes_received == size.sum() - size[r - 1]
    ledger.reset()
    ring_blocks.all_gather(ledger, np.ones(bounds[-1], "f4"), bounds)
    assert (ledger.bytes_sent, ledger.messages_sent) == (size.sum() - size[(r + 1) % n], n - 1)
    assert ledger.bytes_received == size.sum() - size[r]
    ledger.reset()
    ring_blocks.all_gather_v(ledger, np.ones(bounds[r + 1] - bounds[r], "f4"))
    with_lengths = size.sum() - size[(r + 1) % n] + 8 * (n - 1)
    assert (ledger.bytes_sent, ledger.messages_sent) == (with_lengths, 2 * (n - 1))
    formula = ring_blocks.bytes_sent(bounds, 4, r, n_scatters=3, n_gathers=2)
    assert formula == 3 * (size.sum() - size[r]) + 2 * (size.sum() - size[(r + 1) % n])


@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_all_gather_v_agrees_on_the_lengths(t, dtype):
    bounds = uneven(t.size)
    parts = [data(r, bounds[r + 1] - bounds[r], dtype) for r in range(t.size)]
    whole, got = ring_blocks.all_gather_v(t, parts[t.rank])
    assert got == bounds and whole.dtype == dtype and (whole == np.concatenate(parts)).all()


@ranks(3, 4, 5)
def test_on_a_subgroup_in_another_order(t):
    group = t.subgroup([t.size - 1, 0, 1])
    if group is None:
        return
    bounds = [0, 2, 2, 7]
    x = np.arange(7) + 100 * t.rank
    own = ring_blocks.reduce_scatter(group, x, bounds)
    here = np.arange(7)[bounds[group.rank] : bounds[group.rank + 1]]
    assert (own == 3 * here + 100 * (t.size - 1 + 0 + 1)).all()
    whole, _ = ring_blocks.all_gather_v(group, own)
    assert (whole == 3 * np.arange(7) + 100 * t.size).all()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_sends_that_wait_for_their_receives_do_not_lock(n):
    def body(t):
        bounds = uneven(n)
        ring_blocks.reduce_scatter(t, np.ones(bounds[-1]), bounds)
        ring_blocks.all_gather_v(t, np.ones(t.rank))

    simulate(n, body, rendezvous_bytes=0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 16, 33, 64])
def test_time_equals_the_formula_for_equal_blocks(n):
    alpha, beta = 2.0**-10, 2.0**-20  # sums of them are exact in floating point

    def clock(fn):
        return max(simulate(n, lambda t: fn(t) and None or t.time(), alpha=alpha, beta=beta))

    bounds, n_bytes = chunks.bounds(16 * n, n), 64 * n

    def reduce_scatter(t):
        ring_blocks.reduce_scatter(t, np.ones(16 * n, "f4"), bounds)

    def all_gather(t):
        ring_blocks.all_gather(t, np.ones(16 * n, "f4"), bounds)

    def all_gather_v(t):
        ring_blocks.all_gather_v(t, np.ones(16, "f4"))

    assert clock(reduce_scatter) == cost.ring_reduce_scatter(n, n_bytes, alpha, beta).time_s
    assert clock(all_gather) == cost.ring_all_gather(n, n_bytes, alpha, beta).time_s
    assert clock(all_gather_v) == (n - 1) * (2 * alpha + (8 + n_bytes / n) * beta)


@pytest.mark.parametrize("bounds", [[0, 4], [0, 2, 3], [1, 2, 4], [0, 5, 4], [0, 2, 3, 4], []])
def test_bounds_that_do_not_cut_the_array_are_an_error(bounds):
    with pytest.raises(RankFailed, match="bounds of 2 blocks must be 3 numbers from 0 to 4"):
        simulate(2, lambda t: ring_blocks.reduce_scatter(t, np.ones(4), bounds))


def test_ranks_with_other_bounds_are_an_error():
    with pytest.raises(RankFailed) as caught:
        simulate(3, lambda t: ring_blocks.all_gather(t, np.ones(6), [0, 2 + t.rank // 2, 4, 6]))
    assert isinstance(caught.value.__cause__, SizeMismatch)


@ranks(2, 3, 4, mpi=False)
def test_a_watched_transport_accepts_lengths_that_differ_between_ranks(t):
    whole, _ = ring_blocks.all_gather_v(Watch(t), np.full(t.rank, t.rank))
    assert (whole == np.repeat(np.arange(t.size), np.arange(t.size))).all()
