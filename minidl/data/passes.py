"""A loader without an end, which remembers where it is: what a step of an elastic run reads.

    batches = Passes(DataLoader(data, B // t.size, DistributedSampler(len(data), t.rank, t.size)))
    x, y = next(batches)              epoch 0: 7 2 | 9 0 | 4 1 | epoch 1: 3 5 | ...

A data.Pipeline is one epoch, which a `for` reads to its end; an elastic run asks for one step after
another (`next`) and has no end of its own, so this class joins the epochs of a loader into one.
Its state is the sampler's: the epoch, and how many samples all ranks together have used. So a run
that goes on reads the next batch, and one on another number of ranks, whose batches are equal parts
of the same B, uses each sample of the epoch exactly once, in the same steps.
Test: tests/data/test_passes.py   Used by: elastic training (elastic/restart.py)
"""


class Passes:
    """next(passes): the loader's next batch, after the last of an epoch the first of the next.
    loader: a DataLoader with a DistributedSampler."""

    def __init__(self, loader):
        if not hasattr(loader.sampler, "load_state_dict"):
            raise TypeError("Passes wants a DataLoader(..., sampler=DistributedSampler(...)), that "
                            f"knows its position; got one with a {type(loader.sampler).__name__}")
        self.loader, self.sampler, self._batches = loader, loader.sampler, None

    def __iter__(self):
        return self

    def __next__(self):
        for _ in range(2):  # after a load at the very end of an epoch, nothing of it is left
            if self._batches is None:
                self._batches = iter(self.loader)
            for batch in self._batches:
                return batch
            self.sampler.set_epoch(self.sampler.epoch + 1)
            self._batches = None
        raise ValueError(f"an epoch of {self.sampler.n} samples has no batch of "
                         f"{self.loader.batch_size} for each of {self.sampler.size} ranks")

    def state_dict(self):
        """The sampler's: the position of the whole run."""
        return self.sampler.state_dict()

    def load_state_dict(self, state):
        self.sampler.load_state_dict(state)
        self._batches = None
