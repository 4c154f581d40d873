"""Datasets made of others: which samples they hold, in which order."""

import itertools

import numpy as np
import pytest

from minidl import data
from minidl.random import Generator


class Squares(data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        return np.float32(i * i), i


class Stream(data.IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(np.arange(self.n))


def values(dataset):
    return [dataset[i][1] for i in range(len(dataset))]


def test_a_subset_and_a_sum_of_datasets():
    part = data.Subset(Squares(10), [7, 2, 2])
    assert len(part) == 3 and values(part) == [7, 2, 2]
    both = part + Squares(2)
    assert isinstance(both, data.ConcatDataset) and values(both) == [7, 2, 2, 0, 1]
    assert both[-1][1] == 1 and both[-5][1] == 7
    for i in (5, -6):
        with pytest.raises(IndexError, match=f"has 5 samples; got the index {i}"):
            both[i]
    with pytest.raises(ValueError, match="itertools.chain"):
        data.ConcatDataset([Stream(2)])


@pytest.mark.parametrize("lengths, wanted", [
    ([3, 0, 7], [3, 0, 7]), ([0.5, 0.5], [5, 5]), ([1 / 3] * 3, [4, 3, 3]),
    ([0.25, 0.75], [3, 7]), ([10], [10])])
def test_random_split_deals_every_sample_once(lengths, wanted):
    parts = data.random_split(Squares(10), lengths, Generator(3))
    assert [len(p) for p in parts] == wanted
    dealt = list(itertools.chain(*map(values, parts)))
    assert sorted(dealt) == list(range(10)) and dealt != list(range(10))
    again = data.random_split(Squares(10), lengths, Generator(3))
    assert [p.indices for p in again] == [p.indices for p in parts]


def test_random_split_fills_up_as_pytorchs_does():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    for n, parts in ((7, [0.3, 0.3, 0.4]), (11, [0.5, 0.25, 0.25])):
        theirs = torch.utils.data.random_split(range(n), parts)
        assert [len(p) for p in data.random_split(range(n), parts)] == [len(p) for p in theirs]


def test_parts_that_do_not_sum_up_are_refused():
    with pytest.raises(ValueError, match=r"\[3, 3\] sum to 6, but the dataset has 10"):
        data.random_split(Squares(10), [3, 3])


def test_a_stream_is_cut_into_batches():
    loader = data.DataLoader(Stream(7), batch_size=3)
    assert [b.tolist() for b in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [b.tolist() for b in data.DataLoader(Stream(7), 3, drop_last=True)] == [
        [0, 1, 2], [3, 4, 5]]
    with pytest.raises(TypeError, match="a stream, has no len"):
        assert len(loader)
    with pytest.raises(ValueError, match="stream, want none of these"):
        data.DataLoader(Stream(7), 3, shuffle=True)


def test_shuffle_gives_every_sample_once_and_each_pass_another_order():
    loader = data.DataLoader(Squares(20), 6, shuffle=True, generator=Generator(1))
    passes = [np.concatenate([i for _, i in loader]).tolist() for _ in range(2)]
    assert [sorted(p) for p in passes] == [list(range(20))] * 2 and passes[0] != passes[1]
    assert len(loader) == 4


def test_a_batch_sampler_decides_alone():
    batches = [[3], [1, 2, 0], [4, 4]]
    loader = data.DataLoader(Squares(5), batch_sampler=batches)
    assert [i.tolist() for _, i in loader] == batches and len(loader) == 3
    with pytest.raises(ValueError, match="and also batch_size or drop_last"):
        data.DataLoader(Squares(5), 2, batch_sampler=batches)
    with pytest.raises(ValueError, match="shuffle and sampler; want at"):
        data.DataLoader(Squares(5), 2, shuffle=True, sampler=[1])


class Nested(Squares):
    def __getitem__(self, i):
        return {"image": np.full((2, 2), i), "meta": ({"id": i, "name": f"n{i}"}, [i / 2, True])}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_dicts_and_nested_samples_become_nested_batches(prefetch):
    (batch,) = data.DataLoader(Nested(3), 3, prefetch=prefetch)
    assert batch["image"].shape == (3, 2, 2) and isinstance(batch["meta"], tuple)
    inner, rest = batch["meta"]
    assert inner["id"].tolist() == [0, 1, 2] and inner["name"] == ["n0", "n1", "n2"]
    assert isinstance(rest, list) and rest[0].tolist() == [0, 0.5, 1] and rest[1].dtype == bool


def test_nested_batches_are_pytorchs():
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    samples = [Nested(3)[i] for i in range(3)]
    theirs = torch.utils.data.default_collate(samples)
    ours = data.DataLoader(Nested(3), 3).collate_fn(samples)
    assert ours.keys() == theirs.keys()
    np.testing.assert_array_equal(ours["image"], theirs["image"].numpy())
    np.testing.assert_array_equal(ours["meta"][0]["id"], theirs["meta"][0]["id"].numpy())
    assert ours["meta"][0]["name"] == theirs["meta"][0]["name"]


def test_samples_that_do_not_fit_together_are_named():
    class Ragged(Squares):
        def __getitem__(self, i):
            return {"x": (0, np.zeros(i))}

    class Keys(Squares):
        def __getitem__(self, i):
            return {f"k{i}": 0}

    with pytest.raises(ValueError, match=r"field x.1 of the samples has shapes \[\(0,\), \(1,\)\]"):
        list(data.DataLoader(Ragged(2), 2))
    with pytest.raises(ValueError, match="different keys"):
        list(data.DataLoader(Keys(2), 2))


def test_what_a_subclass_must_write_is_said():
    with pytest.raises(NotImplementedError, match="Dataset has no __getitem__"):
        data.Dataset()[0]
    with pytest.raises(NotImplementedError, match="IterableDataset has no __iter__"):
        iter(data.IterableDataset())
