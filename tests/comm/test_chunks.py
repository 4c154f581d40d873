"""Chunks cover the vector once, in order."""

import numpy as np
import pytest

from minidl.comm import chunks

SIZES = [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 8, 9, 1000])
def test_chunks_cut_the_vector_in_order_into_near_equal_parts(length, n):
    parts = chunks.split(np.arange(length), n)
    assert len(parts) == n
    assert np.concatenate(parts).tolist() == list(range(length))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    assert sizes == [chunks.size(length, n, i) for i in range(n)]


def test_chunks_are_views():
    x = np.zeros(10)
    chunks.split(x, 3)[1][:] = 1
    assert x.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    chunks.span(x, 4, 1, 3)[:] += 2
    assert x.tolist() == [0, 0, 0, 2, 3, 3, 3, 2, 0, 0]


def test_a_flat_array_is_a_view_where_it_can_be():
    x = np.arange(12).reshape(3, 4)
    assert np.shares_memory(chunks.flat(x), x) and chunks.flat(x).shape == (12,)
    for other in (x.T, x[:, ::2]):
        assert not np.shares_memory(chunks.flat(other), x)
        assert chunks.flat(other).tolist() == other.ravel().tolist()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000])
def test_a_span_is_its_chunks_in_a_row(length, n):
    x = np.arange(length)
    parts = chunks.split(x, n)
    for first in range(n + 1):
        for end in range(first, n + 1):
            row = np.concatenate([x[:0], *parts[first:end]])
            assert chunks.span(x, n, first, end).tolist() == row.tolist()


@pytest.mark.parametrize("n_bytes, count", [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (400, 7)])
def test_segments_are_as_long_as_wanted_or_shorter(n_bytes, count):
    assert chunks.segment_count(n_bytes, 64) == count
