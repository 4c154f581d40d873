"""DataLoader, PyTorch's name for a pipeline of indices, batches and prefetching.

The plain forms: minidl/plain/data.py and minidl/plain/prefetch.py. This file adds PyTorch's
arguments. These two lines give the same batches:

    DataLoader(data, 32, DistributedSampler(len(data), rank, size))
    Pipeline(data).shuffle(0).shard(rank, size).batch(32).prefetch(2)       (pipeline.py)

In the first line the sampler holds the order and the position. In the second line the pipeline
holds the order and the position.

Use DataLoader for a program that was written for PyTorch. A DataLoader contains a Pipeline, which
has the threads and copies batches to the GPU. A pipeline can always save its position for any
number of ranks. A DataLoader can save its position only if its sampler can.
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
    """Yields batches of Tensors. If a sample is (x, y), a batch is (x, y), too. The batches come in
    the sampler's order for every value of `prefetch` and `workers`.

    shuffle:    if True, each pass has a new random order, drawn from `generator` or the default
                generator. Every rank then sees all samples, so on several ranks pass a
                DistributedSampler as `sampler`. A sampler may also be passed as `shuffle`.
    sampler:    yields indices: a DistributedSampler or any sequence. The default is 0, 1, 2, ...
    batch_sampler:  yields lists of indices. It replaces batch_size, sampler and drop_last.
    drop_last:  True leaves out a last batch that is smaller than batch_size.
    prefetch:   how many batches the threads load ahead. With 2, one batch is ready while the next
                batch is being loaded. With 0, the caller's thread loads the batches.
    workers:    how many threads load. With "auto", prefetch.py chooses the number.
    num_workers: PyTorch's number of processes. Here n > 0 means workers=n threads, and 0 changes
                nothing. pin_memory, persistent_workers and prefetch_factor are accepted and
                ignored: use `device` and `prefetch`.
    collate_fn: makes a batch from a list of samples. The default is default_collate (collate.py),
                which makes one Tensor from each field.
    device:     'cuda' or 'cuda:i': the Tensors of a batch are on this GPU. They are copied in the
                background through pinned memory (upload.py). If None, the Tensors are in host
                memory.

    An IterableDataset is read in its own order. Then the loader has no len().

    If the dataset raises an exception, the `for` loop over the loader raises it. The threads end
    when the iteration ends, also after `break`.

    A dataset may draw from the default generator, for instance for augmentation. Sample i of epoch
    e draws from its own random stream, made from (seed, e, i). The seed is the seed of the caller's
    generator at the start of the pass. So the numbers do not depend on prefetch, workers, batches
    or the number of ranks. A resumed run draws the same numbers. The epoch e is sampler.epoch. If
    the sampler has no epoch, e is the number of earlier passes over this loader."""

    def __init__(self, dataset, batch_size=1, shuffle=False, sampler=None, batch_sampler=None,
                 num_workers=0, collate_fn=None, pin_memory=False, drop_last=False, *,
                 generator=None, persistent_workers=False, prefetch_factor=None, prefetch=2,
                 workers=1, device=None):
        if not (isinstance(shuffle, bool) or shuffle is None):
            if sampler is not None:
                raise TypeError("DataLoader: got two samplers, one as shuffle and one as sampler. "
                                "Pass only one of them")
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
            raise ValueError(f"DataLoader of {type(dataset).__name__}: got {' and '.join(given)}; "
                             "want at most one of shuffle, sampler and batch_sampler. For a "
                             "stream, want none of these three")
        if batch_sampler is not None and (batch_size != 1 or drop_last):
            raise ValueError("DataLoader: got batch_sampler and also batch_size or drop_last. "
                             "batch_sampler replaces batch_size and drop_last: leave them out")
        self.batch_sampler = batch_sampler
        if shuffle:
            sampler = RandomSampler(dataset, generator=generator)
        elif sampler is None and not self.is_stream:
            sampler = range(len(dataset))
        self.sampler = sampler
        self.n_passes = 0
        self.pipeline = Pipeline(_Chunks(self)).map(self._load).prefetch(prefetch, workers, device)

    def __len__(self):
        """Returns how many batches a pass has. Raises TypeError for a stream."""
        if self.is_stream:
            raise TypeError(f"a DataLoader of {type(self.dataset).__name__}, a stream, has no "
                            "len(): the number of samples is not known in advance")
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self):
        return iter(self.pipeline)

    def chunks(self):
        """Begins a pass. Returns an iterator over (chunk, seed, streams), one for each batch. A
        chunk is a list of indices, or of samples if the dataset is a stream. The random numbers of
        a sample depend on `seed`, `streams` and the sample's index."""
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
    """A stream for the DataLoader's pipeline. Its items tell which batches to load. The sampler
    holds the position."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return self.loader.chunks()

    def used(self, task):
        advance = getattr(self.loader.sampler, "advance", None)  # a plain range has no advance()
        if advance:
            advance(len(task[0]))
