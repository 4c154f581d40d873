"""Binomial trees: right from every root, with ceil(log2 n) messages from the busiest rank."""

import numpy as np
import pytest

from minidl.comm import tree
from minidl.comm.observe.ledger import Ledger
from minidl.plain import naive
from tests.conftest import ranks


def data(rank):
    return np.arange(11) * 100 + rank


@ranks(1, 2, 3, 4, 5, 8)
def test_broadcast_copies_from_every_root(t):
    for root in range(t.size):
        x = data(t.rank)
        assert tree.broadcast(t, x, root) is x
        assert (x == data(root)).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_reduce_sums_onto_every_root(t):
    expected = sum(data(rank) for rank in range(t.size))
    for root in range(t.size):
        result = tree.reduce(t, data(t.rank), root)
        assert result is None if t.rank != root else (result == expected).all()


@pytest.mark.parametrize("op", [np.add, np.maximum, np.minimum, np.multiply])
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_equals_the_naive_result(t, op):
    x = data(t.rank)
    expected = naive.all_reduce(t, x.copy(), op)
    assert tree.all_reduce(t, x, op) is x
    assert (x == expected).all()


@ranks(2, 3, 4, 5, 8)
def test_strided_arrays_are_reduced_in_place(t):
    grid = np.zeros((4, 6), "f8")
    grid[::2, 1::2] = t.rank + 1
    tree.all_reduce(t, grid[::2, 1::2])
    assert (grid[::2, 1::2] == t.size * (t.size + 1) / 2).all() and grid.sum() == grid[0, 1] * 6


@ranks(1, 2, 3, 4, 5, 8)
def test_messages_and_bytes(t):
    steps = (t.size - 1).bit_length()
    ledger = Ledger(t)
    tree.broadcast(ledger, np.zeros(10, "f4"))
    assert ledger.messages_received == (t.rank > 0)
    if t.rank == 0:
        assert (ledger.messages_sent, ledger.bytes_sent) == (steps, 40 * steps)
    ledger.reset()
    tree.reduce(ledger, np.zeros(10, "f4"))
    assert (ledger.messages_sent, ledger.bytes_sent) == ((1, 40) if t.rank else (0, 0))
    total = naive.all_reduce(t, np.array([ledger.messages_received]))
    assert total == t.size - 1


@ranks(2, 3, 4, 5, 8, mpi=False)
def test_the_barrier_waits_for_the_slowest(t):
    t.compute(float(t.rank == t.size - 1))  # on the modelled clock
    tree.barrier(t)
    assert t.time() > 1.0
