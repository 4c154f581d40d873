"""minidl/data/sampler.py: who sees what, how often, and where a run goes on."""

import itertools

import pytest

from minidl.data import DistributedSampler

SIZES = [1, 2, 3, 4, 5, 8]
LENGTHS = [0, 1, 2, 7, 8, 9, 40]
EACH = list(itertools.product(LENGTHS, SIZES))


def shares(n, size, **kwargs):
    samplers = [DistributedSampler(n, rank, size, **kwargs) for rank in range(size)]
    lists = [list(s) for s in samplers]
    assert [len(s) for s in samplers] == [len(share) for share in lists]
    return lists


@pytest.mark.parametrize("shuffle", [False, True])
def test_uneven_shares_hold_every_index_exactly_once(shuffle):
    for n, size in EACH:
        lists = shares(n, size, shuffle=shuffle, tail="uneven")
        assert sorted(itertools.chain(*lists)) == list(range(n))
        lengths = [len(share) for share in lists]
        assert max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("shuffle", [False, True])
def test_padded_shares_are_equal_and_repeat_the_first_of_the_order(shuffle):
    for n, size in EACH:
        lists = shares(n, size, shuffle=shuffle, tail="pad")
        assert {len(share) for share in lists} == {-(-n // size)}
        dealt = [i for turn in zip(*lists, strict=True) for i in turn]
        order = dealt[:n]
        assert sorted(order) == list(range(n))
        assert dealt[n:] == (order * size)[: len(dealt) - n]


def test_dropping_leaves_equal_shares_without_repeats():
    for n, size in EACH:
        lists = shares(n, size, tail="drop")
        assert {len(share) for share in lists} == {n // size}
        dealt = list(itertools.chain(*lists))
        assert len(set(dealt)) == len(dealt) and set(dealt) <= set(range(n))


@pytest.mark.parametrize("tail, drop_last", [("pad", False), ("drop", True)])
def test_shares_equal_pytorch_s(tail, drop_last):
    torch_data = pytest.importorskip("torch.utils.data", reason="PyTorch is the oracle here")
    for size, n in itertools.product(SIZES, LENGTHS[1:]):  # PyTorch does not divide an empty set
        for rank, share in enumerate(shares(n, size, shuffle=False, tail=tail)):
            oracle = torch_data.DistributedSampler(
                range(n), size, rank, shuffle=False, drop_last=drop_last
            )
            assert share == list(oracle), (size, n, rank)


def test_each_epoch_has_an_order_of_its_own_and_keeps_it():
    sampler = DistributedSampler(50, tail="uneven", seed=4)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert list(sampler) == orders[-1]  # without set_epoch: the same again
    assert len({tuple(order) for order in orders}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == orders[1]
    other_seed = DistributedSampler(50, tail="uneven", seed=5)
    assert list(other_seed) != orders[0]


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("steps", range(4))
def test_a_resumed_run_goes_on_at_the_next_sample(tail, steps):
    n, size, batch = 23, 3, 2
    for rank in range(size):
        sampler = DistributedSampler(n, rank, size, tail=tail, seed=1)
        sampler.set_epoch(6)
        whole = list(sampler)
        first = DistributedSampler(n, 0, size, tail=tail, seed=1)  # rank 0's position is the run's
        first.set_epoch(6)
        iter(first)
        for _ in range(steps):
            first.advance(batch)
        resumed = DistributedSampler(n, rank, size, tail=tail)
        resumed.load_state_dict(first.state_dict())
        assert len(resumed) == len(whole) - steps * batch
        assert list(resumed) == whole[steps * batch :]
        assert list(resumed) == whole  # only the first pass is shortened
        resumed.set_epoch(7)
        sampler.set_epoch(7)
        assert list(resumed) == list(sampler)


@pytest.mark.parametrize("new_size", SIZES)
def test_another_number_of_ranks_finishes_the_epoch_exactly_once(new_size):
    n, size, used = 41, 4, 6
    old = [DistributedSampler(n, r, size, tail="uneven", seed=2) for r in range(size)]
    before = [i for s in old for i in itertools.islice(s, used)]
    old[0].advance(used)
    after = []
    for rank in range(new_size):
        sampler = DistributedSampler(n, rank, new_size, tail="uneven")
        sampler.load_state_dict(old[0].state_dict())
        after += list(sampler)
    assert len(before) == size * used
    assert sorted(before + after) == list(range(n))


def test_a_run_may_be_resumed_again_and_again_on_other_numbers_of_ranks():
    n, state = 60, DistributedSampler(60, tail="uneven", seed=8).state_dict()
    seen = []
    for size, used in ((4, 3), (5, 2), (3, 7), (1, 17)):  # 12 + 10 + 21 + 17 = 60
        samplers = [DistributedSampler(n, rank, size, tail="uneven") for rank in range(size)]
        for sampler in samplers:
            sampler.load_state_dict(state)
            seen += itertools.islice(sampler, used)
            sampler.advance(used)
        state = samplers[0].state_dict()
        assert state["consumed"] == len(seen)
    assert sorted(seen) == list(range(n))


def test_set_epoch_of_the_loaded_epoch_keeps_the_position():
    sampler = DistributedSampler(10, shuffle=False)
    sampler.load_state_dict({"n": 10, "shuffle": False, "seed": 0, "epoch": 2, "consumed": 7})
    seen = []
    for epoch in range(sampler.epoch, 4):  # the training loop's usual shape
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    assert seen == [[7, 8, 9], list(range(10))]


def test_set_epoch_of_another_epoch_starts_it_from_the_beginning():
    sampler = DistributedSampler(10, shuffle=False)
    sampler.load_state_dict({"n": 10, "shuffle": False, "seed": 0, "epoch": 2, "consumed": 7})
    sampler.set_epoch(3)
    assert sampler.state_dict()["consumed"] == 0 and list(sampler) == list(range(10))


def test_a_finished_epoch_resumes_as_nothing_left():
    sampler = DistributedSampler(10, 0, 4, tail="pad")
    list(sampler)
    sampler.advance(len(sampler))
    for rank in range(3):
        resumed = DistributedSampler(10, rank, 3, tail="pad")
        resumed.load_state_dict(sampler.state_dict())
        assert len(resumed) == 0 and list(resumed) == []


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="a number of samples or a dataset .* got generator"):
        DistributedSampler(i for i in range(3))
    with pytest.raises(TypeError, match="only one rank .* got"):
        DistributedSampler(5, 0, rank=1)
    with pytest.raises(ValueError, match="got rank 3 of size 3"):
        DistributedSampler(5, 3, 3)
    with pytest.raises(ValueError, match="pad, drop, uneven; got 'keep'"):
        DistributedSampler(5, tail="keep")
    with pytest.raises(ValueError, match="rank 1: .* of 9 samples, but this dataset has 10"):
        DistributedSampler(10, 1, 2).load_state_dict(DistributedSampler(9).state_dict())
