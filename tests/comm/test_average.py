"""The mean: right with every all-reduce, in place, and never rounded before the division."""

import numpy as np
import pytest

from minidl.comm import average, ring, ring_blocks, tree
from minidl.comm.observe.ledger import Ledger
from minidl.plain import naive
from tests.conftest import ranks

ALL_REDUCES = [ring.all_reduce, ring_blocks.all_reduce, tree.all_reduce, naive.all_reduce]


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
@ranks(1, 2, 3, 4, 5, 8)
def test_the_mean_in_place_with_any_all_reduce(t, all_reduce):
    for dtype in ("f2", "f4", "f8", "c8"):
        x = np.arange(7).astype(dtype) * t.size + t.rank
        assert average.mean(t, x, all_reduce) is x and x.dtype == dtype
        assert (x == np.arange(7) * t.size + (t.size - 1) / 2).all()  # exact in every dtype


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
@ranks(2, 3, 4, 8)
def test_float16_is_summed_and_divided_in_float32(t, all_reduce):
    # The sum passes float16's 65504; the mean does not.
    x = np.full(10, 60000, np.float16) - np.float16(32 * t.rank)
    expected = np.float16(np.mean([np.float32(60000 - 32 * r) for r in range(t.size)]))
    assert (average.mean(t, x, all_reduce) == expected).all()
    with np.errstate(over="ignore"):  # what the mean avoids
        assert np.isinf(all_reduce(t, np.full(10, 60000, np.float16))).all()


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
@ranks(1, 2, 3, 4)
def test_a_strided_array_too_is_averaged_in_place(t, all_reduce):
    for dtype in ("f2", "f4"):
        grid = np.full((4, 6), -1, dtype)
        grid[::2, 1::2] = 2 * t.rank
        average.mean(t, grid[::2, 1::2], all_reduce)
        assert (grid[::2, 1::2] == t.size - 1).all() and (grid == -1).sum() == 18


@ranks(1, 2, 3, 4)
def test_float16_sends_the_bytes_of_float32(t):
    for dtype, itemsize in [("f2", 4), ("f4", 4), ("f8", 8)]:
        ledger = Ledger(t)
        average.mean(ledger, np.ones(12, dtype))
        assert ledger.bytes_sent == 2 * (t.size - 1) * (12 // t.size) * itemsize


@ranks(2, mpi=False)
def test_an_integer_mean_is_refused(t):
    with pytest.raises(TypeError, match="rank .: a mean needs a floating point"):
        average.mean(t, np.ones(3, "i4"))


@pytest.mark.parametrize("all_reduce", ALL_REDUCES)
@ranks(2, 3, mpi=False)
def test_bfloat16_too_is_summed_and_divided_in_float32(t, all_reduce):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    # From 256 on bfloat16 holds even numbers only: sums rounded on the way would lose the ones.
    x = np.arange(250, 260).astype(bfloat16)
    expected = x.astype(np.float32).astype(bfloat16)
    assert (average.mean(t, x, all_reduce) == expected).all() and x.dtype == bfloat16
