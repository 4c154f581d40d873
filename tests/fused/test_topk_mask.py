"""minidl/fused/topk_mask.py."""

import numpy as np
import pytest

from minidl.comm import compressed, simulate
from minidl.fused import dispatch
from minidl.fused import topk_mask as fused
from minidl.fused.launch import CHUNK
from tests.fused.common import SIZES, normal

LENGTHS = [*SIZES, CHUNK, CHUNK + 1, 9 * CHUNK + 7]


@pytest.mark.parametrize("threshold", [0.0, 1.5, 99.0])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", LENGTHS)
def test_takes_the_large_elements_in_order_and_drop_leaves_the_others(n, dtype, threshold):
    x = normal(n, dtype, n)
    index, value = fused.compact(x, threshold)
    expected_index, expected_value = fused.reference(x, threshold)
    np.testing.assert_array_equal(index, expected_index)
    np.testing.assert_array_equal(value, expected_value)
    rest = x.copy()
    fused.drop(rest, threshold)
    whole = rest.copy()
    whole[index] = value
    np.testing.assert_array_equal(whole, x)
    assert not rest[expected_index].any()


@pytest.mark.parametrize("n", [1, 31, 32, 33, 300])
def test_a_warp_finds_the_same_places(n):
    x, length = normal(n, "f4", n), 70  # chunks that end inside a warp's 32
    n_chunks = -(-n // length)
    counts = np.full(n_chunks, -1, np.int32)
    count = dispatch.kernel(fused.FILE, "count_above_warps", "f4")
    count(2, 96, (counts, x, 0.5, n, length, n_chunks))
    expected_index, expected_value = fused.reference(x, 0.5)
    np.testing.assert_array_equal(counts, np.bincount(expected_index // length, minlength=n_chunks))
    first = np.cumsum(counts, dtype=np.int32) - counts
    index, value = np.empty(counts.sum(), np.int32), np.empty(counts.sum(), np.float32)
    kernel = dispatch.kernel(fused.FILE, "compact_warps", "f4")
    kernel(2, 96, (index, value, x, first, 0.5, n, length, n_chunks))
    np.testing.assert_array_equal(index, expected_index)
    np.testing.assert_array_equal(value, expected_value)


@pytest.mark.parametrize("k", [1, 10, 257])
def test_the_threshold_lets_k_elements_pass(k):
    x = normal(257, "f4", 1)  # no ties
    assert len(fused.compact(x, fused.threshold_of(x, k))[0]) == k


def test_the_pairs_are_what_a_sparse_all_reduce_takes():
    """Each rank sends its 10 largest elements; those it keeps make up the rest of the sum."""
    xs = [normal(300, "f4", seed) for seed in (1, 2, 3)]
    rests = [x.copy() for x in xs]

    def rank(t):
        threshold = fused.threshold_of(xs[t.rank], 10)
        pairs = fused.compact(xs[t.rank], threshold)
        fused.drop(rests[t.rank], threshold)
        return compressed.sparse_all_reduce(t, *pairs, 300)

    sums = simulate(3, rank)
    for total in sums:
        np.testing.assert_array_equal(total, sums[0])
        np.testing.assert_allclose(total + sum(rests), sum(xs), rtol=0, atol=1e-6)  # order of sums


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"compact: want a vector .* got shape \(2, 2\)"):
        fused.compact(np.zeros((2, 2), np.float32), 1.0)
    with pytest.raises(ValueError, match="threshold_of: k is 0, of 3 elements"):
        fused.threshold_of(np.zeros(3, np.float32), 0)
