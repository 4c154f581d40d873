"""The page and the real tree: the same bits, and the same messages."""

import numpy as np
import pytest

from minidl.comm import Ledger
from minidl.comm import tree as real
from minidl.plain import tree
from tests.comm.cases import data
from tests.conftest import ranks


def counts(ledger):
    return [(count.bytes_sent, count.messages_sent, count.bytes_received, count.messages_received)
            for count in (ledger.count(peer=peer) for peer in range(ledger.size))]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_has_the_bits_and_the_messages_of_the_real_one(t, dtype):
    for length in (0, 1, 101):
        x, ours, theirs = data(t.rank, length, dtype), Ledger(t), Ledger(t)
        y = tree.all_reduce(ours, x.copy())
        np.testing.assert_array_equal(y, real.all_reduce(theirs, x.copy()))
        assert counts(ours) == counts(theirs)


@ranks(1, 2, 3, 4, 5, 8)
def test_each_half_does_what_the_real_one_does(t):
    x, y = data(t.rank, 37), data(t.rank, 37)
    tree.reduce(t, x)
    real.reduce(t, y)
    np.testing.assert_array_equal(x, y)  # on inner ranks partial sums
    x = data(t.rank, 37)
    tree.broadcast(t, x)
    np.testing.assert_array_equal(x, data(0, 37))
