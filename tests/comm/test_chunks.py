"""Chunks cover the vector once, and the byte formulas equal the golden values."""

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


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000])
def test_a_span_is_its_chunks_in_a_row(length, n):
    x = np.arange(length)
    parts = chunks.split(x, n)
    for first in range(n + 1):
        for end in range(first, n + 1):
            row = np.concatenate([x[:0], *parts[first:end]])
            assert chunks.span(x, n, first, end).tolist() == row.tolist()


@pytest.mark.parametrize(
    "length, n, golden",
    [
        (1000, 4, [6000] * 4),
        (1000, 7, [6856, 6856, 6856, 6856, 6860, 6860, 6856]),
        (3, 8, [16, 20, 24, 24, 24, 24, 20, 16]),
        (10, 3, [56, 52, 52]),
        (0, 4, [0] * 4),
        (1000, 1, [0]),
    ],
)
def test_ring_bytes_equal_the_golden_values(length, n, golden):
    assert [chunks.ring_bytes_sent(length, 4, n, rank) for rank in range(n)] == golden


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_ring_bytes_sum_to_2_n_minus_1_K(length, n):
    sent = [chunks.ring_bytes_sent(length, 8, n, rank) for rank in range(n)]
    received = [chunks.ring_bytes_received(length, 8, n, rank) for rank in range(n)]
    assert sum(sent) == sum(received) == 2 * (n - 1) * length * 8
