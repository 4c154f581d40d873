"""The page and the real one: the same bits. The page halves what it holds, the real one cuts x
into chunks first. So a rank may send an element more or less, but for lengths that p divides."""

import numpy as np
import pytest

from minidl.comm import Ledger
from minidl.comm import halving_doubling as real
from minidl.plain import halving_doubling, naive
from tests.comm.cases import data, length_of
from tests.conftest import ranks


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@ranks(1, 2, 3, 4, 5, 6, 7, 8)
def test_all_reduce_has_the_bits_of_the_real_one(t, dtype):
    for length in (0, 1, "n-1", "n", "n+1", 101):
        x = data(t.rank, length_of(length, t.size), dtype)
        want = real.all_reduce(t, x.copy())
        np.testing.assert_array_equal(halving_doubling.all_reduce(t, x), want)


@ranks(1, 2, 3, 4, 5, 6, 7, 8)
def test_the_bytes_are_those_of_the_formula(t):
    for length in (0, 1, 7, 8, 101, 8 * 13):
        ledger = Ledger(t)
        halving_doubling.all_reduce(ledger, data(t.rank, length))
        formula = [real.bytes_sent(length, 4, t.size, rank) for rank in range(t.size)]
        if length % 8 == 0:
            assert ledger.bytes_sent == formula[t.rank]
        total = naive.all_reduce(t, np.array([ledger.bytes_sent]))
        assert total == sum(formula)
