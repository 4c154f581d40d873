"""Decides which samples a rank sees, and in which order.

The plain forms: minidl/plain/data.py, and for several ranks minidl/plain/shuffle.py. This file adds
three ways to treat the last samples, and PyTorch's arguments.

    order of the epoch    7 2 9 0 4 1 8 3 5 6      a permutation drawn from (seed, epoch)
    dealt like cards      a b c d a b c d a b      rank r gets positions r, r + size, r + 2 size...

    ten samples for four ranks:       a    b    c    d
      tail="pad"                      3    3    3    3   the first two samples are used twice
      tail="drop"                     2    2    2    2   the last two samples are not used
      tail="uneven"                   3    3    2    2   every sample is used exactly once

When each rank has used k samples, all ranks together have used exactly the first k * size samples
of the order. So one number is the position of the whole run, and the unused samples can be dealt to
any number of ranks.
DistributedSampler has PyTorch's interface. Pipeline.shuffle(seed).shard(rank, size) in pipeline.py
gives each rank the same samples.
Test: tests/data/test_sampler.py
"""

import numpy as np

from minidl.data import partition
from minidl.data.order import Sampler
from minidl.random import Generator

# The first random stream for orders. Weights and dropout use lower streams of the same seed.
ORDER_STREAMS = 1 << 62


def order(n, seed, epoch):
    """Returns the order of an epoch: a permutation of range(n), drawn from (seed, epoch)."""
    return Generator(seed, ORDER_STREAMS + epoch).permutation(n)


class DistributedSampler(Sampler):
    """Iterates over this rank's share of range(n).

        DistributedSampler(n, rank, size)                  n: the number of samples
        DistributedSampler(dataset, num_replicas, rank)    the same arguments as in PyTorch

    shuffle: if False, every epoch has the order of the dataset.
    tail:  how to treat the last samples if n is not divisible by `size`: "pad", "drop" or "uneven"
           (see the picture at the top of this file). With "pad" and "drop", all
           ranks have the same number of samples, and so the same number of batches. "pad" repeats
           samples, so a mean over all samples is biased. Use "uneven" for an evaluation.
    drop_last:  PyTorch's name for tail="drop"."""

    def __init__(self, n, *place, rank=None, size=None, num_replicas=None, shuffle=True, seed=0,
                 tail="pad", drop_last=False):
        names = ("rank", "size")
        if not isinstance(n, int | np.integer):
            if not hasattr(n, "__len__"):
                raise TypeError("DistributedSampler wants a number of samples or a dataset with a "
                                f"len(), got {type(n).__name__}")
            names, n = ("num_replicas", "rank"), len(n)
        named = {"rank": rank, "size": size, "num_replicas": num_replicas}
        named = {name: value for name, value in named.items() if value is not None}
        given = dict(zip(names, place))
        if len(place) > 2 or given.keys() & named.keys() or {"size", "num_replicas"} <= {
                *given, *named}:
            raise TypeError(f"DistributedSampler(..., {', '.join(names)}, shuffle=...) wants "
                            "only one rank and only one number of ranks; got the positional "
                            f"arguments {place} and the keyword arguments {named}")
        given.update(named)
        rank = given.get("rank", 0)
        size = given.get("size", given.get("num_replicas", 1))
        if n < 0:
            raise ValueError(f"DistributedSampler: want n >= 0, the number of samples; got n={n}")
        tail = "drop" if drop_last else tail
        partition.check(rank, size, tail, ("pad", "drop", "uneven"))
        self.n, self.rank, self.size = int(n), rank, size
        self.shuffle, self.seed, self.tail = shuffle, seed, tail
        self.epoch = 0
        self.consumed = 0  # the number of positions in the order that all ranks together have used
        self._resume_at = 0  # where the next pass starts. It is 0 if no state was loaded

    def set_epoch(self, epoch):
        """Sets the epoch, and with it the order of the samples. Call set_epoch() before each epoch.
        Otherwise all epochs have the same order."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._resume_at = epoch, 0, 0

    def __len__(self):
        """Returns how many samples this rank has in the next pass."""
        return len(self._positions(self._resume_at))

    def __iter__(self):
        positions = self._positions(self._resume_at)
        self.consumed, self._resume_at = self._resume_at, 0
        return iter(self._order()[positions].tolist())

    def _order(self):
        return order(self.n, self.seed, self.epoch) if self.shuffle else np.arange(self.n)

    def _positions(self, start):
        """Returns this rank's positions in the order, from `start` on. With "pad", the first
        positions follow after the last position."""
        everything = np.arange(self.n)
        return partition.dealt(everything[start:], self.size, self.tail, everything)[
            self.rank::self.size]

    def advance(self, n_samples):
        """Counts `n_samples` more samples as used by this rank. DataLoader calls advance() for each
        batch that it yields. A batch that is only loaded ahead is not counted yet, because a
        resumed run must not skip this batch."""
        self.consumed = min(self.consumed + n_samples * self.size, self.n)

    def state_dict(self):
        """Returns the position of the whole run. Save the position of rank 0, because no rank has
        more samples than rank 0."""
        return {"n": self.n, "shuffle": self.shuffle, "seed": self.seed, "epoch": self.epoch,
                "consumed": self.consumed}

    def load_state_dict(self, state):
        """Continues from a saved position. The number of ranks may be different: the unused samples
        of the order are dealt to the ranks of this run. After this, the loop
        `for epoch in range(sampler.epoch, n_epochs)` continues the run. Only the next pass is
        shorter. Raises ValueError if the dataset has another length."""
        if state["n"] != self.n:
            raise ValueError(f"rank {self.rank}: the saved position is in a dataset of {state['n']}"
                             f" samples, but this dataset has {self.n}. Resume with the same data.")
        self.shuffle, self.seed, self.epoch = state["shuffle"], state["seed"], state["epoch"]
        self.consumed = self._resume_at = state["consumed"]
