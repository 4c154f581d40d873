"""The page and the real ring: the same bits."""

import numpy as np
import pytest

from minidl.comm import ring as real
from minidl.plain import ring
from tests.comm.cases import data, length_of
from tests.conftest import ranks


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_has_the_bits_of_the_real_one(t, dtype):
    for length in (0, 1, "n-1", "n", "n+1", 101):
        x = data(t.rank, length_of(length, t.size), dtype)
        np.testing.assert_array_equal(ring.all_reduce(t, x.copy()), real.all_reduce(t, x))


@ranks(1, 2, 3, 4, 5, 8)
def test_each_half_has_the_bits_of_the_real_one(t):
    x, y = data(t.rank, 37), data(t.rank, 37)
    ring.reduce_scatter(t, x)
    real.reduce_scatter(t, y)
    np.testing.assert_array_equal(x, y)
    ring.all_gather(t, x)
    real.all_gather(t, y)
    np.testing.assert_array_equal(x, y)
