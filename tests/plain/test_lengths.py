"""The page and the real lengths: the same batches, rows, masks and waste."""

import numpy as np
import pytest

from minidl.data import lengths as real
from minidl.nn.models import GPT
from minidl.plain import lengths
from minidl.random import Generator

LENGTHS = np.random.default_rng(3).integers(1, 40, 203)


@pytest.mark.parametrize("batch_size, pool", [(1, 2), (4, 50), (7, 3)])
def test_batches_by_length_are_the_real_ones(batch_size, pool):
    order = Generator(5, real.POOL_STREAMS + 2).permutation(len(LENGTHS))
    ours = lengths.by_length(LENGTHS, order.tolist(), batch_size, batch_size * pool)
    theirs = real.pools(LENGTHS, batch_size, pool=pool, seed=5)(epoch=2)
    # the real one turns every second pool around, so that neighbours are alike
    assert sorted(ours) == sorted(theirs)
    assert lengths.waste(LENGTHS, ours) == pytest.approx(real.waste(LENGTHS, theirs), abs=1e-15)
    if pool == 50:  # long pools
        unsorted = [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
        assert lengths.waste(LENGTHS, ours) < lengths.waste(LENGTHS, unsorted) / 2


@pytest.mark.parametrize("capacity", [39, 64, 200])
def test_rows_are_the_real_ones(capacity):
    assert lengths.first_fit(LENGTHS, capacity) == real.first_fit_decreasing(LENGTHS, capacity)


def test_a_packed_row_and_its_mask_are_the_real_ones():
    texts = [np.array([7, 8, 9]), np.array([4]), np.array([5, 6])]
    ids, positions = lengths.pack(texts, 9)
    real_ids, real_positions = real.pack([(text,) for text in texts], 9, fills=(0,))
    np.testing.assert_array_equal(ids, real_ids.numpy())
    np.testing.assert_array_equal(positions, real_positions.numpy())
    causal = np.tril(np.ones((9, 9), bool))
    want = GPT.one_text(positions[None])[0, 0] & causal
    np.testing.assert_array_equal(lengths.mask(positions), want)
    assert want[2, 0] and not want[3, 2] and not want[7, 6] and want.any(1).all()
