"""The page and the real sampler deal one order alike, also after a restart on other ranks."""

import numpy as np
import pytest

from minidl.data import sampler
from minidl.data.sampler import DistributedSampler
from minidl.plain import shuffle


@pytest.mark.parametrize("n", [0, 1, 5, 10, 23])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 8])
def test_shares_are_the_real_ones(n, n_ranks):
    for epoch in (0, 3):
        for rank in range(n_ranks):
            real = DistributedSampler(n, rank, n_ranks, seed=7, tail="uneven")
            real.set_epoch(epoch)
            drawn = sampler.order(n, 7, epoch)  # by the real one's own random numbers
            assert shuffle.share(drawn, rank, n_ranks).tolist() == list(real)


@pytest.mark.parametrize("before, after", [(2, 3), (4, 1), (3, 5), (8, 2)])
def test_the_rest_is_dealt_to_other_ranks_as_the_real_one_does(before, after):
    n, used_by_each = 29, 2
    real = DistributedSampler(n, 0, before, seed=1, tail="uneven")
    iter(real)
    real.advance(used_by_each)
    state, drawn = real.state_dict(), sampler.order(n, 1, 0)
    seen = [shuffle.share(drawn, rank, before)[:used_by_each] for rank in range(before)]
    for rank in range(after):
        again = DistributedSampler(n, rank, after, seed=1, tail="uneven")
        again.load_state_dict(state)
        seen.append(shuffle.share(drawn, rank, after, used=before * used_by_each))
        assert seen[-1].tolist() == list(again)
    assert sorted(np.concatenate(seen)) == list(range(n)), "each sample once"


def test_an_order_follows_from_seed_and_epoch():
    orders = {(seed, epoch): tuple(shuffle.order(50, seed, epoch))
              for seed in range(4) for epoch in range(4)}
    assert len(set(orders.values())) == 16
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert orders[1, 2] == tuple(shuffle.order(50, 1, 2))
