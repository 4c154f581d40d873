"""Halving and doubling: chunk r ends at rank r, with exactly the bytes of the formula.

The sum itself: test_every_all_reduce.py.
"""

import numpy as np
import pytest

from minidl.comm import chunks
from minidl.comm import halving_doubling as hd
from minidl.comm.observe.ledger import Ledger
from tests.conftest import ranks

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)


def lengths(n):
    return (0, 1, n - 1, n, n + 1, 101)


def data(rank, length):
    return np.random.default_rng([rank, length]).integers(-99, 99, length)


def test_the_core_is_the_largest_power_of_two():
    assert [hd.core(n) for n in range(1, 10)] == [1, 2, 2, 4, 4, 4, 4, 8, 8]


@ranks(*SIZES)
def test_reduce_scatter_leaves_chunk_r_on_rank_r_of_the_core(t):
    for length in lengths(t.size):
        whole = sum(data(rank, length) for rank in range(t.size))
        own = hd.reduce_scatter(t, data(t.rank, length))
        split = chunks.split(whole, hd.core(t.size))
        expected = split[t.rank] if t.rank < len(split) else whole[:0]
        assert own.tolist() == expected.tolist()


@ranks(*SIZES)
def test_all_gather_spreads_own_chunks_to_all_ranks(t):
    for length in lengths(t.size):
        whole = data(0, length)
        x = np.full_like(whole, -1)
        if t.rank < hd.core(t.size):
            p = hd.core(t.size)
            chunks.split(x, p)[t.rank][:] = chunks.split(whole, p)[t.rank]
        assert hd.all_gather(t, x) is x and (x == whole).all()


@ranks(*SIZES)
def test_bytes_and_messages_equal_the_formula(t):
    p = hd.core(t.size)
    steps, extra = p.bit_length() - 1, t.size - p
    for length in lengths(t.size):
        ledger = Ledger(t)
        hd.all_reduce(ledger, np.ones(length, "f4"))
        assert ledger.bytes_sent == hd.bytes_sent(length, 4, t.size, t.rank)
        messages = 1 if t.rank >= p else 2 * steps + (t.rank < extra)
        assert ledger.messages_sent == ledger.messages_received == messages
        ledger.reset()
        hd.doubling_all_reduce(ledger, np.ones(length, "f4"))
        messages = 1 if t.rank >= p else steps + (t.rank < extra)
        assert ledger.messages_sent == ledger.messages_received == messages
        assert ledger.bytes_sent == messages * length * 4


@pytest.mark.parametrize("n", range(1, 20))
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_bytes_of_all_ranks_are_those_of_the_ring(n, length):
    sent = [hd.bytes_sent(length, 8, n, rank) for rank in range(n)]
    assert sum(sent) == 2 * (n - 1) * length * 8


# fp32: by hand. 8 ranks: 2 * 7/8 K each. 3 ranks: rank 2 sends K to rank 0; ranks 0, 1 swap halves
# twice (of 10 elements: 5 and 5); rank 0 sends K back. 4 ranks, 10 elements, chunks of 3, 3, 2, 2:
# halving sends 10 less the own chunk, doubling the own chunk and then the own pair.
GOLDEN = {
    (1000, 8): [7000] * 8,
    (10, 3): [80, 40, 40],
    (10, 4): [4 * (7 + 3 + 6), 4 * (7 + 3 + 6), 4 * (8 + 2 + 4), 4 * (8 + 2 + 4)],
    (1, 4): [4 * (0 + 1 + 1), 4 * (1 + 0 + 1), 4, 4],
}


@pytest.mark.parametrize("length, n", GOLDEN)
def test_golden_bytes(length, n):
    assert [hd.bytes_sent(length, 4, n, rank) for rank in range(n)] == GOLDEN[length, n]


@ranks(2, 4, 8)
def test_partners_differ_in_one_bit(t):
    ledger = Ledger(t)
    hd.all_reduce(ledger, np.ones(16, "f4"))
    for row, count in ledger.rows.items():
        assert row.label == "halving_doubling.all_reduce"
        apart = t.world_rank ^ row.peer
        assert apart & (apart - 1) == 0
        # the farther, the more: 16 elements over n times the distance, each way
        assert count.bytes_sent == 2 * 64 * apart // t.size
    assert len(ledger.rows) == t.size.bit_length() - 1


@ranks(4, 8)
def test_a_chunk_is_added_in_pairs(t):
    # float32 values of very different size: another order gives other bits. Far partners add first.
    inputs = [
        (np.random.default_rng(r).normal(size=37) * 10.0 ** (r % 4 * 3)).astype("f4")
        for r in range(t.size)
    ]
    sums = inputs
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
    assert (hd.all_reduce(t, inputs[t.rank].copy()) == sums[0]).all()
