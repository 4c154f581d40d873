"""What a dataset is, and datasets made of others.

    Dataset            len(dataset) and dataset[i], one sample
    IterableDataset    only `for sample in dataset`: a stream, whose length nobody knows
    Subset             the samples of another at given indices        random_split cuts one in parts
    ConcatDataset      one dataset after the other                    a + b

A subclass of Dataset or IterableDataset is not needed, anything with these methods will do; but a
DataLoader knows a stream by its class.       Test: tests/data/test_dataset.py
"""

import bisect
import itertools
import math

from minidl.random import default_generator


class Dataset:
    """A subclass writes __getitem__(i) and __len__()."""

    def __getitem__(self, i):
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __add__(self, other):
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """A subclass writes __iter__(). Under several ranks each must give its own share: for instance
    `itertools.islice(samples, rank, None, size)`."""

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class Subset(Dataset):
    """Sample i is dataset[indices[i]]."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        """`i` may be a slice or an array of integers if the dataset takes arrays."""
        return self.dataset[self.indices[i]]


class ConcatDataset(Dataset):
    """The samples of the first, then those of the second, ..."""

    def __init__(self, datasets):
        self.datasets = list(datasets)
        if not self.datasets or any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ValueError("ConcatDataset wants one or more datasets with a length; of streams: "
                             "itertools.chain")
        self.ends = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, i):
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        i %= len(self)
        k = bisect.bisect_right(self.ends, i)
        return self.datasets[k][i - (self.ends[k - 1] if k else 0)]


def random_split(dataset, lengths, generator=None):
    """Subsets of `lengths` samples, in random order and without overlap. Fractions that sum to 1
    are rounded down, and the samples left over are dealt to the first parts."""
    n, lengths = len(dataset), list(lengths)
    if all(0 <= part <= 1 for part in lengths) and math.isclose(sum(lengths), 1):
        lengths = [math.floor(n * part) for part in lengths]
        for i in range(n - sum(lengths)):
            lengths[i % len(lengths)] += 1
    if sum(lengths) != n:
        raise ValueError(f"random_split: the parts {lengths} sum to {sum(lengths)}, the dataset "
                         f"has {n} samples")
    order = (generator or default_generator()).permutation(n)
    ends = list(itertools.accumulate(lengths))
    return [Subset(dataset, order[end - part:end].tolist())
            for part, end in zip(lengths, ends, strict=True)]
