"""Orders of samples: each index as often as it should come."""

import itertools
import tracemalloc

import numpy as np
import pytest

import minidl
from minidl import data
from minidl.random import Generator


def test_sequential_and_random_orders():
    assert list(data.SequentialSampler("abc")) == [0, 1, 2]
    sampler = data.RandomSampler(range(30), generator=Generator(1))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(30)) and first != second
    assert len(sampler) == 30


def test_a_sampler_of_ones_own():
    class Even(data.Sampler):
        def __init__(self, n):
            super().__init__(range(n))
            self.n = n

        def __iter__(self):
            return iter(range(0, self.n, 2))

        def __len__(self):
            return -(-self.n // 2)

    assert [b.tolist() for b in data.DataLoader(range(5), 2, Even(5))] == [[0, 2], [4]]
    assert isinstance(data.DistributedSampler(3), data.Sampler)
    assert all(issubclass(getattr(data, f"{kind}Sampler"), data.Sampler) for kind in (
        "Sequential", "Random", "WeightedRandom", "SubsetRandom", "Batch"))
    with pytest.raises(NotImplementedError, match="Sampler has no __iter__"):
        iter(data.Sampler())


def test_a_pass_may_be_shorter_or_longer_than_the_data():
    few = list(data.RandomSampler(range(30), num_samples=7, generator=Generator(1)))
    assert len(set(few)) == 7
    many = list(data.RandomSampler(range(3), num_samples=8, generator=Generator(1)))
    assert [sorted(many[i:i + 3]) for i in (0, 3)] == [[0, 1, 2]] * 2 and len(many) == 8
    repeated = list(data.RandomSampler(range(3), True, 50, Generator(1)))
    assert set(repeated) == {0, 1, 2} and len(repeated) == 50
    assert list(data.RandomSampler([])) == []
    with pytest.raises(ValueError, match="num_samples is 3 for 0 samples"):
        data.RandomSampler([], num_samples=3)


def test_the_default_generator_draws_unless_one_is_given():
    def order():
        minidl.manual_seed(7)
        return list(data.RandomSampler(range(20)))

    assert order() == order()


def test_weights_are_frequencies():
    weights = [1, 0, 3, 4]
    drawn = list(data.WeightedRandomSampler(weights, 8000, generator=Generator(2)))
    counts = np.bincount(drawn, minlength=4)
    # the standard deviation of a count is at most sqrt(8000 / 4) = 45
    np.testing.assert_allclose(counts, [1000, 0, 3000, 4000], rtol=0, atol=200)
    assert counts[1] == 0


def test_without_replacement_the_first_is_drawn_by_weight_and_none_comes_twice():
    sampler = data.WeightedRandomSampler([1, 0, 3, 4], 3, False, Generator(2))
    drawn = np.array([list(sampler) for _ in range(2000)])
    assert (np.sort(drawn, axis=1) == [0, 2, 3]).all()
    first = np.bincount(drawn[:, 0], minlength=4)
    np.testing.assert_allclose(first, [250, 0, 750, 1000], rtol=0, atol=110)  # 5 deviations of 22
    # given that 3 is first, 2 is second three times of four
    second = drawn[drawn[:, 0] == 3, 1]
    assert abs((second == 2).mean() - 0.75) < 0.07


@pytest.mark.parametrize("weights, n, replacement, message", [
    ([1, -1], 1, True, "finite weights >= 0"), ([0, 0], 1, True, "one weight above 0"),
    ([1, np.nan], 1, True, "finite"), ([1, 0], 2, False, "at most 1, .* got 2"),
    ([1], 0, True, "must be 1 or more.* got 0")])
def test_wrong_weights_are_refused(weights, n, replacement, message):
    with pytest.raises(ValueError, match=message):
        data.WeightedRandomSampler(weights, n, replacement)


def test_a_subset_in_random_order():
    drawn = list(data.SubsetRandomSampler([5, 7, 9, 11], Generator(1)))
    assert sorted(drawn) == [5, 7, 9, 11]


def test_batches_of_indices():
    assert list(data.BatchSampler(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(data.BatchSampler(range(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert [len(data.BatchSampler(range(5), 2, d)) for d in (False, True)] == [3, 2]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        data.BatchSampler(range(5), 0)


@pytest.mark.parametrize("sampler", [
    lambda n: data.RandomSampler(range(100), replacement=True, num_samples=n),
    lambda n: data.RandomSampler(range(100), num_samples=n),
    lambda n: data.WeightedRandomSampler([1.0, 0.0, 3.0], n)])
def test_samples_are_drawn_as_they_are_needed(sampler):
    """10**10 indices would take 80 GB. Of 40,000 each comes about as often as it should."""
    tracemalloc.start()
    first = list(itertools.islice(sampler(10**10), 5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(first) == 5 and peak < 5 << 20
    some = sampler(40_000)
    found = list(some)
    assert len(found) == len(some) == 40_000
    counts = np.bincount(found)
    wanted = [10_000, 0, 30_000] if len(counts) == 3 else [400] * 100
    np.testing.assert_allclose(counts, wanted, atol=6 * 400**0.5 if len(counts) > 3 else 600)
