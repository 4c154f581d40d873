"""minidl/parallel/data/topk_mask.py."""

import numpy as np
import pytest

from minidl.comm import compressed, simulate
from minidl.cuda import dispatch
from minidl.cuda.launch import CHUNK
from minidl.parallel.data import topk_mask
from tests.kernel_arrays import SIZES, normal

LENGTHS = [*SIZES, CHUNK, CHUNK + 1, 9 * CHUNK + 7]


@pytest.mark.parametrize("threshold", [0.0, 1.5, 99.0])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", LENGTHS)
def test_takes_the_large_elements_in_order_and_drop_leaves_the_others(n, dtype, threshold):
    x = normal(n, dtype, n)
    index, value = topk_mask.compact(x, threshold)
    expected_index, expected_value = topk_mask.by_numpy(x, threshold)
    np.testing.assert_array_equal(index, expected_index)
    np.testing.assert_array_equal(value, expected_value)
    rest = x.copy()
    topk_mask.drop(rest, threshold)
    whole = rest.copy()
    whole[index] = value
    np.testing.assert_array_equal(whole, x)
    assert not rest[expected_index].any()


def check_top_k(x, k):
    """Exactly k, in order, none smaller than what is left; equal ones from the front."""
    index, value = topk_mask.top_k(x, k)
    assert index.dtype == np.int32 and len(index) == len(value) == k
    assert (np.diff(index) > 0).all() and (value == x[index]).all()
    order = np.argsort(-np.abs(x), kind="stable")  # the oracle: of equal ones the first
    np.testing.assert_array_equal(index, np.sort(order[:k]))


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_the_k_largest_are_exactly_those(dtype):
    rng = np.random.default_rng(3)
    for n, k in [(0, 0), (1, 0), (1, 1), (300, 1), (300, 299), (70_001, 7), (200_000, 200)]:
        check_top_k(rng.standard_normal(n).astype(dtype), k)
        check_top_k(rng.integers(-3, 4, n).astype(dtype), k)  # ties, zeros
    clustered = rng.standard_normal(200_000).astype(dtype)
    clustered[100_000:101_000] *= 50  # more in one chunk than it has places
    check_top_k(clustered, 200)


@pytest.mark.parametrize("n", [6, 200_000])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_not_a_number_is_the_largest(n, dtype):
    """Red before: without k numbers in a short vector the search did not end."""
    x = np.random.default_rng(1).standard_normal(n).astype(dtype)
    x[[0, 2, n - 1]] = np.nan, np.inf, -np.nan
    for k in (1, 2, 3, 4, n - 1):
        index, value = topk_mask.top_k(x.copy(), k)
        assert len(index) == k
        np.testing.assert_array_equal(value, x[index])
        large = {0, 2, n - 1}
        assert set(index) <= large if k < 3 else set(index) >= large
    assert list(topk_mask.top_k(np.full(6, np.nan, dtype), 4)[0]) == [0, 1, 2, 3]


def test_a_sample_that_misleads_costs_time_and_nothing_else():
    x = np.zeros(200_000, np.float32)
    check_top_k(x, 200)
    x[topk_mask.sample_of(x, 200)[1] :: 7] = 1e-30
    check_top_k(x, 200)
    large = np.full(200_000, 0.001, np.float32)
    step = 200_000 // len(topk_mask.sample_of(large, 200)[0])
    large[::step] = 5  # exactly what the sample looks at
    check_top_k(large, 50_000)
    check_top_k(large, 199_000)
    rare = np.zeros(200_000, np.float32)
    rare[[5, 150_001]] = -2, 1e-39  # the second counts as 0
    assert set(topk_mask.top_k(rare, 2)[0]) == {0, 5} and len(topk_mask.top_k(rare, 300)[0]) == 300


@pytest.mark.parametrize("n", [1, 31, 32, 33, 300])
def test_a_warp_finds_the_same_places(n):
    x, length = normal(n, "f4", n), 70  # chunks that end inside a warp's 32
    n_chunks = -(-n // length)
    counts = np.full(n_chunks, -1, np.int32)
    count = dispatch.kernel(topk_mask.FILE, "count_above_warps", "f4")
    count(2, 96, (counts, x, 0.5, n, length, n_chunks))
    expected_index, expected_value = topk_mask.by_numpy(x, 0.5)
    np.testing.assert_array_equal(counts, np.bincount(expected_index // length, minlength=n_chunks))
    first = np.cumsum(counts, dtype=np.int32) - counts
    index, value = np.empty(counts.sum(), np.int32), np.empty(counts.sum(), np.float32)
    kernel = dispatch.kernel(topk_mask.FILE, "compact_warps", "f4")
    kernel(2, 96, (index, value, x, first, 0.5, n, length, n_chunks))
    np.testing.assert_array_equal(index, expected_index)
    np.testing.assert_array_equal(value, expected_value)


@pytest.mark.parametrize("k", [1, 10, 257])
def test_the_threshold_lets_k_elements_pass(k):
    x = normal(257, "f4", 1)  # no ties
    assert len(topk_mask.compact(x, topk_mask.threshold_of(x, k))[0]) == k


def test_the_pairs_are_what_a_sparse_all_reduce_takes():
    """Each rank sends its 10 largest elements; those it keeps make up the rest of the sum."""
    xs = [normal(300, "f4", seed) for seed in (1, 2, 3)]
    rests = [x.copy() for x in xs]

    def rank(t):
        threshold = topk_mask.threshold_of(xs[t.rank], 10)
        pairs = topk_mask.compact(xs[t.rank], threshold)
        topk_mask.drop(rests[t.rank], threshold)
        return compressed.sparse_all_reduce(t, *pairs, 300)

    sums = simulate(3, rank)
    for total in sums:
        np.testing.assert_array_equal(total, sums[0])
        np.testing.assert_allclose(total + sum(rests), sum(xs), rtol=0, atol=1e-6)  # order of sums


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"compact wants a vector .* got shape \(2, 2\)"):
        topk_mask.compact(np.zeros((2, 2), np.float32), 1.0)
    with pytest.raises(ValueError, match="top_k wants k from 0 to 3, .*; got 4"):
        topk_mask.top_k(np.zeros(3, np.float32), 4)
    with pytest.raises(ValueError, match="threshold_of wants k from 1 to 3, .*; got 0"):
        topk_mask.threshold_of(np.zeros(3, np.float32), 0)
