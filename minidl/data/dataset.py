"""The classes of datasets, and datasets made of other datasets.

    Dataset            len(dataset) and dataset[i], one sample
    IterableDataset    only `for sample in dataset`: a stream of unknown length
    Subset             some samples of a dataset, by their indices    random_split() makes Subsets
    ConcatDataset      one dataset after the other                    a + b

You need no subclass of Dataset: any object with these methods works. A stream for a DataLoader must
be a subclass of IterableDataset.             Test: tests/data/test_dataset.py
"""

import bisect
import itertools
import math

from minidl.random import default_generator


class Dataset:
    """A subclass defines __getitem__(i) and __len__()."""

    def __getitem__(self, i):
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__. Define "
                                  "__getitem__(i), which returns sample i")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """A subclass defines __iter__(). With several ranks, each rank must yield its own share, for
    instance `itertools.islice(samples, rank, None, size)`."""

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} has no __iter__. Define "
                                  "__iter__(), which yields samples")


class Subset(Dataset):
    """Some samples of a dataset. Sample i is dataset[indices[i]]."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        """Returns sample i. `i` may be a slice or an array of integers if `dataset` and `indices`
        accept such an index."""
        return self.dataset[self.indices[i]]


class ConcatDataset(Dataset):
    """The samples of the first dataset, then the samples of the second, and so on."""

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets or any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ValueError("ConcatDataset wants one or more datasets with a length; got "
                             f"{[type(d).__name__ for d in self.datasets]}. Join streams with "
                             "itertools.chain")
        self.ends = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, i):
        if not -len(self) <= i < len(self):
            raise IndexError(f"ConcatDataset has {len(self)} samples; got the index {i}")
        i %= len(self)
        k = bisect.bisect_right(self.ends, i)
        return self.datasets[k][i - (self.ends[k - 1] if k else 0)]


def random_split(dataset, lengths, generator=None):
    """Divides a dataset into parts at random. Returns a list with a Subset for each part. No sample
    is in two Subsets.

    lengths:   the number of samples in each part, or fractions that sum to 1. With fractions, the
               numbers of samples are rounded down. The samples that are left over go to the first
               parts, one to each part.
    generator: draws the order. If None, the default generator draws it.
    Raises ValueError if the lengths do not sum to len(dataset)."""
    n, lengths = len(dataset), list(lengths)
    if all(0 <= part <= 1 for part in lengths) and math.isclose(sum(lengths), 1):
        lengths = [math.floor(n * part) for part in lengths]
        for i in range(n - sum(lengths)):
            lengths[i % len(lengths)] += 1
    if sum(lengths) != n:
        raise ValueError(f"random_split: the lengths {lengths} sum to {sum(lengths)}, but the "
                         f"dataset has {n} samples; want lengths with the sum {n}, or fractions "
                         "with the sum 1")
    order = (generator or default_generator()).permutation(n)
    ends = list(itertools.accumulate(lengths))
    return [Subset(dataset, order[end - part:end].tolist())
            for part, end in zip(lengths, ends, strict=True)]
