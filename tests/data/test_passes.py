"""Batches without an end: the loader's, epoch after epoch, from wherever a run stopped."""

import numpy as np
import pytest

from minidl.data import ArrayDataset, DataLoader, DistributedSampler, Passes


def passes(n, batch, rank=0, size=1, prefetch=0, tail="pad"):
    sampler = DistributedSampler(n, rank, size, seed=1, tail=tail)
    return Passes(DataLoader(ArrayDataset(np.arange(n)), batch, sampler, prefetch=prefetch))


def read(found, n_batches):
    return [next(found)[0].tolist() for _ in range(n_batches)]


def test_each_epoch_has_every_sample_once_in_an_order_of_its_own():
    batches = read(passes(12, 4), 6)
    first, second = sum(batches[:3], []), sum(batches[3:], [])
    assert sorted(first) == sorted(second) == list(range(12)) and first != second


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("at", range(8))
def test_it_goes_on_where_it_was(at, prefetch):
    whole = read(passes(12, 4, prefetch=prefetch), 9)
    stopped = passes(12, 4, prefetch=prefetch)
    read(stopped, at)
    again = passes(12, 4, prefetch=prefetch)
    again.load_state_dict(stopped.state_dict())
    assert read(again, 9 - at) == whole[at:]


@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_on_another_number_of_ranks_the_steps_have_the_same_samples(before, after):
    """12 samples a step; a rank's part of them may be another one."""

    def step(ranks):
        return sorted(sum((next(rank)[0].tolist() for rank in ranks), []))

    whole = [passes(36, 12)]
    wanted = [step(whole) for _ in range(7)]
    ranks = [passes(36, 12 // before, r, before) for r in range(before)]
    assert [step(ranks) for _ in range(4)] == wanted[:4]
    state = ranks[0].state_dict()
    ranks = [passes(36, 12 // after, r, after) for r in range(after)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert [step(ranks) for _ in range(3)] == wanted[4:]


def test_a_loader_that_does_not_know_its_position_is_refused():
    with pytest.raises(TypeError, match="Passes wants a DataLoader.*with the sampler range"):
        Passes(DataLoader(ArrayDataset(np.arange(3))))


def test_an_epoch_without_a_batch_is_an_error():
    with pytest.raises(ValueError, match="1 samples are too few for a batch of 1 on each of 2"):
        next(passes(1, 1, 1, 2, tail="drop"))
