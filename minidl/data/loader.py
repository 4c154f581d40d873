"""DataLoader, PyTorch's name for a pipeline of indices, batches and prefetching.

The plain forms: minidl/plain/data.py and minidl/plain/prefetch.py. Here: PyTorch's arguments.

    DataLoader(data, 32, DistributedSampler(len(data), rank, size))         is, in other words,
    Pipeline(data).shuffle(0).shard(rank, size).batch(32).prefetch(2)       (pipeline.py)

with the sampler as the owner of order and place.

Both names stay. This one is what a program written for PyTorch calls. It has no thread and no copy
to a GPU of its own: all of that is the pipeline's. A pipeline knows its order itself, and so its
place on any number of ranks, which a sampler of the user's need not tell.
Test: tests/data/test_loader.py
"""

import itertools

import numpy as np

from minidl.data.collate import default_collate
from minidl.data.dataset import IterableDataset
from minidl.data.order import RandomSampler
from minidl.data.pipeline import Pipeline
from minidl.data.stages import SAMPLE_STREAMS
from minidl.random import Generator, default_generator, using


class DataLoader:
    """Iterates over batches of Tensors, (x, y) for samples (x, y), in the sampler's order whatever
    `prefetch` is.
    shuffle:    True: a new random order for each pass, drawn from `generator` or the default one.
                On several ranks every rank would see all samples: there pass a
                DistributedSampler. A sampler may stand in this place, too.
    sampler:    gives indices: DistributedSampler, any sequence; None for 0, 1, 2, ...
    batch_sampler:  gives lists of indices, in place of batch_size, sampler and drop_last.
    drop_last:  leave out a last batch smaller than batch_size.
    prefetch:   batches loaded ahead by a thread: 2 means one is ready and one is being loaded; 0
                loads in the caller's thread.
    workers:    how many threads load. "auto": prefetch.py finds the number.
    num_workers: PyTorch's processes. Here they are threads: n > 0 means workers=n, and 0 changes
                nothing. pin_memory, persistent_workers and prefetch_factor are taken and do
                nothing: `device` and `prefetch` do their work.
    collate_fn: from a list of samples to a batch: default_collate (collate.py) makes one Tensor of
                each field.
    device:     'cuda' or 'cuda:i': the Tensors of a batch lie there, copied in the background
                through pinned memory (upload.py); None: in the host's memory.
    A dataset of class IterableDataset is read in its own order, and the loader has no length then.

    An exception in the dataset is raised in the loop that iterates. The thread ends with the
    iteration, also after `break`.

    A dataset may draw from the default generator, to augment: sample i of epoch e gets a stream of
    its own, of the seed that the caller's generator has at the start of the pass. So the numbers
    are the same whatever prefetch, the batches, the number of ranks, and after a resumed run; they
    differ between epochs: the sampler's, or if it counts none, the passes of this loader."""

    def __init__(self, dataset, batch_size=1, shuffle=False, sampler=None, batch_sampler=None,
                 num_workers=0, collate_fn=None, pin_memory=False, drop_last=False, *,
                 generator=None, persistent_workers=False, prefetch_factor=None, prefetch=2,
                 workers=1, device=None):
        if not (isinstance(shuffle, bool) or shuffle is None):
            if sampler is not None:
                raise TypeError("DataLoader: got two samplers, one in the place of shuffle")
            shuffle, sampler = False, shuffle
        if num_workers < 0:
            raise ValueError(f"DataLoader: num_workers is {num_workers}, want 0 or more")
        workers = num_workers or workers
        collate_fn = default_collate if collate_fn is None else collate_fn
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.collate_fn = collate_fn
        self.is_stream = isinstance(dataset, IterableDataset)
        given = [name for name, value in (("shuffle", shuffle), ("sampler", sampler is not None),
                                          ("batch_sampler", batch_sampler is not None)) if value]
        if len(given) > 1 or given and self.is_stream:
            raise ValueError(f"DataLoader: of {type(dataset).__name__} got {' and '.join(given)}; "
                             "want one of shuffle, sampler, batch_sampler, and none for a stream")
        if batch_sampler is not None and (batch_size != 1 or drop_last):
            raise ValueError("DataLoader: batch_sampler takes the place of batch_size, drop_last")
        self.batch_sampler = batch_sampler
        if shuffle:
            sampler = RandomSampler(dataset, generator=generator)
        elif sampler is None and not self.is_stream:
            sampler = range(len(dataset))
        self.sampler = sampler
        self.n_passes = 0
        self.pipeline = Pipeline(_Chunks(self)).map(self._load).prefetch(prefetch, workers, device)

    def __len__(self):
        if self.is_stream:
            raise TypeError(f"a DataLoader of {type(self.dataset).__name__}, a stream, has no "
                            "len()")
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self):
        return iter(self.pipeline)

    def chunks(self):
        """(indices or samples of a batch, seed, streams) of each batch of a pass, which begins."""
        epoch = getattr(self.sampler, "epoch", self.n_passes)
        self.n_passes += 1
        seed, streams = default_generator().seed, SAMPLE_STREAMS + (epoch << 36)
        if self.is_stream:
            chunks = self._chunks(iter(self.dataset), Generator(seed, streams))
        elif self.batch_sampler is not None:
            chunks = iter(self.batch_sampler)
        else:
            chunks = self._chunks(iter(self.sampler), default_generator())
        return ((chunk, seed, streams) for chunk in chunks)

    def _chunks(self, items, generator):
        while True:
            with using(generator):
                chunk = list(itertools.islice(items, self.batch_size))
            if not chunk or len(chunk) < self.batch_size and self.drop_last:
                return
            yield chunk

    def _load(self, task):
        chunk, seed, streams = task
        if self.is_stream:
            return self.collate_fn(chunk)
        try:
            return self.collate_fn([self._sample(i, seed, streams) for i in chunk])
        except Exception as error:
            error.add_note(f"while loading samples {chunk}")
            raise

    def _sample(self, index, seed, streams):
        number = index if isinstance(index, (int, np.integer)) else 0
        with using(Generator(seed, (streams + int(number)) % (1 << 64))):
            return self.dataset[index]


class _Chunks(IterableDataset):
    """The batches to be loaded, as a stream; the sampler keeps the place."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return self.loader.chunks()

    def used(self, task):
        advance = getattr(self.loader.sampler, "advance", None)  # a plain range keeps no position
        if advance:
            advance(len(task[0]))
