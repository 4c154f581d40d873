"""An endless loader with a position that can be saved, for the steps of an elastic run.

    batches = Passes(DataLoader(data, B // t.size, DistributedSampler(len(data), t.rank, t.size)))
    x, y = next(batches)              epoch 0: 7 2 | 9 0 | 4 1 | epoch 1: 3 5 | ...

A `for` loop over a loader ends after one epoch. An elastic run counts steps and calls next() in
each step. So this class joins the epochs of a loader into one endless iterator. The state of Passes
is the sampler's state: the epoch, and how many samples all ranks together have used. A resumed run
continues with the next batch. It may have another number of ranks, if the batches of all ranks
together still have B samples. The run then still uses each sample of the epoch exactly once, in the
same steps.
Test: tests/data/test_passes.py   Used by: elastic training (elastic/restart.py)
"""


class Passes:
    """next(passes) returns the loader's next batch. After the last batch of an epoch it returns the
    first batch of the next epoch. loader: a DataLoader with a DistributedSampler."""

    def __init__(self, loader):
        if not hasattr(loader.sampler, "load_state_dict"):
            raise TypeError("Passes wants a DataLoader(..., sampler=DistributedSampler(...)), "
                            "because it saves the sampler's position; got a DataLoader with the "
                            f"sampler {type(loader.sampler).__name__}")
        self.loader, self.sampler, self._batches = loader, loader.sampler, None

    def __iter__(self):
        return self

    def __next__(self):
        for _ in range(2):  # if a run resumes at the end of an epoch, the first pass has no batch
            if self._batches is None:
                self._batches = iter(self.loader)
            for batch in self._batches:
                return batch
            self.sampler.set_epoch(self.sampler.epoch + 1)
            self._batches = None
        raise ValueError(f"{self.sampler.n} samples are too few for a batch of "
                         f"{self.loader.batch_size} on each of {self.sampler.size} ranks. Use a "
                         "smaller batch_size, or more samples")

    def state_dict(self):
        """Returns the sampler's state: the position of the whole run."""
        return self.sampler.state_dict()

    def load_state_dict(self, state):
        """Continues from a saved position, also on another number of ranks."""
        self.sampler.load_state_dict(state)
        self._batches = None
