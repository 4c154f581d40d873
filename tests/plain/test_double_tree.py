"""The page and the real double tree: the same trees, bits and bytes."""

import numpy as np
import pytest

from minidl.comm import Ledger
from minidl.comm import double_tree as real
from minidl.plain import double_tree
from tests.comm.cases import data, length_of
from tests.conftest import ranks


def test_the_trees_are_the_real_ones():
    for n in range(1, 70):
        assert [double_tree.parent(r, n) for r in range(n)] == [real.parent(n, r) for r in range(n)]
        for r in range(n):
            assert double_tree.children(r, n) == real.children(n, r)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@ranks(1, 2, 3, 4, 5, 6, 7, 8)
def test_all_reduce_has_the_bits_and_the_bytes_of_the_real_one(t, dtype):
    for length in (0, 1, "n-1", "n", "n+1", 101):
        x, ledger = data(t.rank, length_of(length, t.size), dtype), Ledger(t)
        want = real.all_reduce(t, x.copy())
        np.testing.assert_array_equal(double_tree.all_reduce(ledger, x), want)
        assert ledger.bytes_sent == real.bytes_sent(len(x), x.itemsize, t.size, t.rank)
