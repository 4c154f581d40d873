"""In which order samples come, on one rank. Each is an iterable of indices with a length.

    Sampler                what a sampler of your own may be a subclass of
    SequentialSampler      0 1 2 3 ...
    RandomSampler          a permutation; with replacement, any index at any time
    WeightedRandomSampler  index i with probability w_i / sum(w): classes of unequal size, balanced
    SubsetRandomSampler    a permutation of given indices
    BatchSampler           lists of batch_size indices

Every pass draws anew, from `generator` or this rank's default one. For several ranks, and for a
position that can be saved, take DistributedSampler (sampler.py).     Test: tests/data/test_order.py
"""

import itertools

import numpy as np

from minidl.random import default_generator


class Sampler:
    """A subclass writes __iter__(), the indices of one pass, and __len__() if it is known."""

    def __init__(self, data_source=None):
        pass  # PyTorch's takes the dataset, and forgets it

    def __iter__(self):
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequentialSampler(Sampler):
    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))

    def __len__(self):
        return len(self.data_source)


AT_ONCE = 1 << 14  # indices that are drawn in one call


class RandomSampler(Sampler):
    """num_samples: how many in a pass, len(data_source) unless given; beyond that, without
    replacement, one permutation follows the other. They are drawn as they are needed: a training
    by steps asks for 10**10 of them."""

    def __init__(self, data_source, replacement=False, num_samples=None, generator=None):
        n = len(data_source) if num_samples is None else num_samples
        if n < 0 or n and not len(data_source):
            raise ValueError(f"RandomSampler: {n} samples wanted of {len(data_source)}")
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
    """num_samples indices of range(len(weights)); the weights need not sum to 1."""

    def __init__(self, weights, num_samples, replacement=True, generator=None):
        self.weights = np.asarray(weights, np.float64)
        n_possible = int((self.weights > 0).sum())
        if self.weights.ndim != 1 or not np.isfinite(self.weights).all() or (
                self.weights < 0).any() or not n_possible:
            raise ValueError("WeightedRandomSampler wants a vector of weights, finite, none "
                             "negative, not all zero")
        if num_samples < 1 or not replacement and num_samples > n_possible:
            raise ValueError(f"WeightedRandomSampler: {num_samples} samples wanted, {n_possible} "
                             "indices have a weight above 0; replacement=True may repeat")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self):
        generator, w = self.generator or default_generator(), self.weights
        if self.replacement:  # a uniform number falls into the interval of its index
            ends, last = np.cumsum(w), np.flatnonzero(w)[-1]
            for begin in range(0, self.num_samples, AT_ONCE):
                n = min(AT_ONCE, self.num_samples - begin)
                u = generator.uniform((n,), dtype=np.float64) * ends[-1]
                yield from np.minimum(np.searchsorted(ends, u, "right"), last).tolist()
        else:  # the first num_samples of a race in which i arrives with rate w_i
            u = generator.uniform(w.shape, dtype=np.float64)
            arrival = np.where(w > 0, -np.log1p(-u) / np.where(w > 0, w, 1), np.inf)
            yield from np.argsort(arrival, kind="stable")[:self.num_samples].tolist()

    def __len__(self):
        return self.num_samples


class SubsetRandomSampler(Sampler):
    def __init__(self, indices, generator=None):
        self.indices, self.generator = list(indices), generator

    def __iter__(self):
        order = (self.generator or default_generator()).permutation(len(self.indices))
        return iter([self.indices[i] for i in order])

    def __len__(self):
        return len(self.indices)


class BatchSampler(Sampler):
    """Lists of batch_size indices of `sampler`; the last may be shorter, or is left out."""

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
