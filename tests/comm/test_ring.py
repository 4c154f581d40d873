"""The ring: equal to the naive sum, the same bits everywhere, and the bytes of its formula."""

import re

import numpy as np
import pytest

from minidl.comm import chunks, ring, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.comm.cases import DTYPES, bits_agree, data, length_of
from tests.conftest import ranks

# Lengths around the number of ranks make empty and unequal chunks.
LENGTHS = [0, 1, "n-1", "n", "n+1", 1000]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_is_the_sum_of_all_ranks(t, length, dtype):
    length = length_of(length, t.size)
    inputs = [data(rank, length, dtype) for rank in range(t.size)]
    x = inputs[t.rank].copy()
    result = ring.all_reduce(t, x)
    assert result.base is x or result is x  # in place
    exact = np.sum([i.astype("f8") for i in inputs], axis=0)
    # Each of the n-1 additions rounds once, by at most eps/2 of a partial sum below sum |x|.
    eps = np.finfo(dtype).eps if np.dtype(dtype).kind == "f" else 0
    bound = t.size * eps / 2 * np.sum([np.abs(i.astype("f8")) for i in inputs], axis=0)
    assert (np.abs(result.astype("f8") - exact) <= bound).all()
    assert bits_agree(t, result)


@pytest.mark.parametrize("op", [np.maximum, np.minimum, np.multiply])
@ranks(1, 2, 3, 4, 5, 8)
def test_other_operations_equal_the_naive_result(t, op):
    x = data(t.rank, 1000, "i8")
    assert (ring.all_reduce(t, x.copy(), op) == naive.all_reduce(t, x, op)).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_logical_or_of_booleans(t):
    x = np.arange(40) % (t.rank + 2) == 0
    expected = np.any([np.arange(40) % (r + 2) == 0 for r in range(t.size)], axis=0)
    assert (ring.all_reduce(t, x, np.logical_or) == expected).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_every_chunk_is_summed_in_ring_order(t):
    # float32 values of very different size: another order gives other bits.
    inputs = [
        (np.random.default_rng(r).normal(size=37) * 10.0 ** (r % 4 * 3)).astype("f4")
        for r in range(t.size)
    ]
    result = ring.all_reduce(t, inputs[t.rank].copy())
    for c, chunk in enumerate(chunks.split(result, t.size)):
        parts = [chunks.split(inputs[(c + i) % t.size], t.size)[c] for i in range(t.size)]
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        assert (chunk == total).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_any_shape_and_strides(t):
    whole = data(t.rank, 120, "f8")
    expected = naive.all_reduce(t, whole.copy())
    grid, want = whole.reshape(4, 5, 6), expected.reshape(4, 5, 6)
    for view in (np.s_[:], np.s_[::2], np.s_[:, ::-1], np.s_[:, :, 1], np.s_[1, 2, 3:4]):
        result = ring.all_reduce(t, grid[view].copy()[...])
        np.testing.assert_allclose(
            result, want[view], rtol=1e-14
        )  # 7 additions, each within 1.1e-16
        strided = grid[view]
        kept = strided.copy()
        if not strided.flags.c_contiguous:
            result = ring.all_reduce(t, strided)
            assert (strided == kept).all()  # a strided argument is left alone
            np.testing.assert_allclose(result, want[view], rtol=1e-14)
    scalar = np.array(t.rank + 1.0)
    assert ring.all_reduce(t, scalar).shape == () and scalar == t.size * (t.size + 1) / 2


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_reduce_scatter_owns_chunk_rank_plus_one(t, length):
    length = length_of(length, t.size)
    x = data(t.rank, length, "i8")
    whole = naive.all_reduce(t, x.copy())
    own = ring.reduce_scatter(t, x.copy())
    assert (own == chunks.split(whole, t.size)[(t.rank + 1) % t.size]).all()


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_all_gather_spreads_own_chunks(t, length):
    whole = data(0, length_of(length, t.size), "i8")
    x = np.full_like(whole, -1)
    own = (t.rank + 1) % t.size
    chunks.split(x, t.size)[own][:] = chunks.split(whole, t.size)[own]
    assert (ring.all_gather(t, x) == whole).all()


@pytest.mark.parametrize("length", LENGTHS)
@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_and_messages_equal_the_formula(t, length):
    n, length = t.size, length_of(length, t.size)
    ledger = Ledger(t)
    ring.all_reduce(ledger, np.ones(length, "f4"))
    assert ledger.bytes_sent == ring.bytes_sent(length, 4, n, t.rank)
    assert ledger.bytes_received == ring.bytes_sent(length, 4, n, (t.rank - 1) % n)
    assert ledger.messages_sent == ledger.messages_received == 2 * (n - 1)
    peers = {(t.rank - 1) % n, (t.rank + 1) % n} if n > 1 else set()
    assert {row[:3] for row in ledger.rows} == {(t.ranks, "ring.all_reduce", p) for p in peers}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("odd_one", [0, 1])
def test_unequal_sizes_are_an_error_that_names_rank_and_sizes(n, odd_one):
    def body(t):
        ring.all_reduce(t, np.ones(2 * n + (t.rank == odd_one), "f4"))

    with pytest.raises(RankFailed) as caught:
        simulate(n, body)
    # Chunk 0 is 3 elements on the odd one and 2 elsewhere; neighbours of the odd one see it.
    assert isinstance(caught.value.__cause__, SizeMismatch)
    assert re.fullmatch(
        r"rank (\d): SizeMismatch: rank \1: ring.all_reduce needs the same size on all ranks; "
        r"expected (8 bytes from rank \d, got 12|12 bytes from rank \d, got 8)\. "
        r"Is the last batch shorter on some rank\?",
        str(caught.value),
    )


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
def test_bytes_equal_the_golden_values(length, n, golden):
    assert [ring.bytes_sent(length, 4, n, rank) for rank in range(n)] == golden


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_bytes_sum_to_2_n_minus_1_K(length, n):
    assert sum(ring.bytes_sent(length, 8, n, r) for r in range(n)) == 2 * (n - 1) * length * 8
