"""The page, the oracle of many tests, against NumPy alone; and shared memory has its bits."""

import numpy as np
import pytest

from minidl.comm import Ledger, shared_memory
from minidl.plain import naive
from tests.comm.cases import data as vector
from tests.comm.cases import length_of
from tests.conftest import ranks


def data(rank):
    return np.random.default_rng(rank).normal(size=(3, 5)).astype("f4")


@ranks(1, 2, 3, 4, 5, 8)
def test_gather_lists_in_rank_order(t):
    gathered = naive.gather(t, data(t.rank))
    assert (gathered is None) == (t.rank > 0)
    if t.rank == 0:
        np.testing.assert_array_equal(gathered, [data(r) for r in range(t.size)])


@ranks(1, 2, 3, 4, 5, 8)
def test_broadcast_copies_rank_0(t):
    x = data(t.rank)
    assert naive.broadcast(t, x) is x and (x == data(0)).all()


@pytest.mark.parametrize("op", [np.add, np.maximum, np.minimum, np.multiply])
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_works_in_rank_order_and_in_place(t, op):
    x = data(t.rank)
    expected = data(0)
    for rank in range(1, t.size):
        expected = op(expected, data(rank))
    assert naive.all_reduce(t, x, op) is x
    assert (x == expected).all()  # the same bits: the same order


@ranks(1, 2, 3, 4, 5, 8)
def test_shared_memory_has_its_bits(t):
    for length in (0, 1, "n-1", "n", "n+1", 101):
        x = vector(t.rank, length_of(length, t.size))
        want = naive.all_reduce(t, x.copy())
        np.testing.assert_array_equal(shared_memory.all_reduce(t, x), want)


@ranks(1, 2, 3, 4, 5, 8)
def test_rank_0_carries_everything(t):
    ledger = Ledger(t)
    naive.all_reduce(ledger, np.zeros(10, "f4"))
    others = 1 if t.rank else t.size - 1
    assert (ledger.messages_sent, ledger.bytes_sent) == (others, 40 * others)
    assert (ledger.messages_received, ledger.bytes_received) == (others, 40 * others)


@ranks(1, 2, 3)
def test_an_array_without_axes_is_summed(t):
    assert naive.all_reduce(t, np.array(float(t.rank + 1))) == t.size * (t.size + 1) / 2
