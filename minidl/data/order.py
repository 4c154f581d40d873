"""The order of the samples on one rank. Each sampler is an iterable of indices with a length.

    Sampler                a base class for your own samplers
    SequentialSampler      0 1 2 3 ...
    RandomSampler          a permutation. With replacement, each draw may be any index
    WeightedRandomSampler  index i with probability w_i / sum(w), to balance classes of unequal size
    SubsetRandomSampler    a permutation of given indices
    BatchSampler           lists of batch_size indices

Every pass draws a new order, from `generator` or from this rank's default generator. For several
ranks, and for a position that can be saved, use DistributedSampler (sampler.py).
Test: tests/data/test_order.py
"""

import itertools

import numpy as np

from minidl.random import default_generator


class Sampler:
    """A subclass defines __iter__(), which yields the indices of one pass, and __len__() if the
    length is known."""

    def __init__(self, data_source=None):
        pass  # PyTorch's Sampler takes the dataset too, and does not use it

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} has no __iter__. Define "
                                  "__iter__(), which yields indices")


class SequentialSampler(Sampler):
    """Yields 0, 1, ..., len(data_source) - 1."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


AT_ONCE = 1 << 14  # indices that are drawn in one call


class RandomSampler(Sampler):
    """Yields random indices of range(len(data_source)).

    replacement: if False, a pass is a permutation. If True, each index is drawn independently.
    num_samples: how many indices a pass has. The default is len(data_source). If num_samples is
                 larger, a pass has several permutations, one after another.
    Indices are drawn only when they are needed, so num_samples may be 10**10."""

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        n = len(data_source) if num_samples is None else num_samples
        if n < 0 or n and not len(data_source):
            raise ValueError(f"RandomSampler: num_samples is {n} for {len(data_source)} samples; "
                             "want num_samples >= 0, and num_samples = 0 for an empty data_source")
        self.data_source, self.replacement = data_source, replacement
        self.num_samples, self.generator = n, generator

    def __iter__(self):
        generator, n = self.generator or default_generator(), len(self.data_source)
        left = self.num_samples
        while left:
            if self.replacement:
                drawn = generator.integers(0, n, (min(left, AT_ONCE),))
            else:
                drawn = generator.permutation(n)[:left]
            yield from drawn.tolist()
            left -= len(drawn)

    def __len__(self):
        return self.num_samples


class WeightedRandomSampler(Sampler):
    """Yields num_samples indices of range(len(weights)). The weights need not sum to 1. Without
    replacement an index comes at most once. Raises ValueError for a negative, infinite or NaN
    weight, or if all weights are 0."""

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        self.weights = np.asarray(weights, np.float64)
        n_possible = int((self.weights > 0).sum())
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (
                self.weights < 0).any() or not n_possible:
            raise ValueError("WeightedRandomSampler wants a vector of finite weights >= 0, and at "
                             f"least one weight above 0; got weights of shape "
                             f"{self.weights.shape}, and {n_possible} of the weights are above 0")
        if num_samples < 1 or not replacement and num_samples > n_possible:
            raise ValueError("WeightedRandomSampler: num_samples must be 1 or more. Without "
                             f"replacement it must be at most {n_possible}, because {n_possible} "
                             f"indices have a weight above 0; got {num_samples}. With "
                             "replacement=True an index can be drawn several times")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self):
        generator, w = self.generator or default_generator(), self.weights
        if self.replacement:  # i has an interval of length w_i. A random number picks an interval
            ends, last = np.cumsum(w), np.flatnonzero(w)[-1]
            for begin in range(0, self.num_samples, AT_ONCE):
                n = min(AT_ONCE, self.num_samples - begin)
                u = generator.uniform((n,), dtype=np.float64) * ends[-1]
                yield from np.minimum(np.searchsorted(ends, u, "right"), last).tolist()
        else:  # index i arrives after a random time with rate w_i. The earliest indices are taken
            u = generator.uniform(w.shape, dtype=np.float64)
            arrival = np.where(w > 0, -np.log1p(-u) / np.where(w > 0, w, 1), np.inf)
            yield from np.argsort(arrival, kind="stable")[:self.num_samples].tolist()

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Yields the given indices in a random order."""

    def __init__(self, indices, generator=None):
        self.indices, self.generator = list(indices), generator

    def __iter__(self):
        order = (self.generator or default_generator()).permutation(len(self.indices))
        return iter([self.indices[i] for i in order])

    def __len__(self):
        return len(self.indices)


class BatchSampler(Sampler):
    """Yields lists of batch_size indices of `sampler`. The last list may be shorter. drop_last=True
    leaves out a shorter list."""

    def __init__(self, sampler, batch_size, drop_last=False):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self):
        indices = iter(self.sampler)
        while chunk := list(itertools.islice(indices, self.batch_size)):
            if len(chunk) == self.batch_size or not self.drop_last:
                yield chunk

    def __len__(self):
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
