"""Batches, loaded ahead in the background.

    loading thread     load 1 | load 2 | load 3 | wait ...        at most `prefetch` batches ahead
    training                    step 1 ....... | step 2 ....... |

A step costs max(loading, training) instead of their sum. Only one thread runs Python at a time (the
global interpreter lock), so this helps where loading waits for the disk or computes in NumPy, which
release the lock.   Test: tests/data/test_loader.py
"""

import itertools
import queue
import threading

import numpy as np

from minidl.data.dataset import IterableDataset
from minidl.data.order import RandomSampler
from minidl.data.upload import Upload
from minidl.random import Generator, default_generator, using


def stack(samples):
    """Samples, tuples of arrays and numbers, to a tuple of arrays (batch_size, ...). Dicts become a
    dict of such arrays; dicts, tuples and lists may be nested; strings become a list of strings."""
    if not isinstance(samples[0], (tuple, dict)):
        samples = [(s,) for s in samples]
    return _stacked(samples, "")


def _stacked(values, where):
    """One field of the samples; `where`: its name and a dot, for an error."""
    first = values[0]
    if isinstance(first, dict):
        if any(v.keys() != first.keys() for v in values):
            raise ValueError("the samples have different keys: "
                             f"{sorted({str(sorted(map(str, v))) for v in values})}")
        return {k: _stacked([v[k] for v in values], f"{where}{k}.") for k in first}
    if isinstance(first, (tuple, list)):
        parts = [_stacked(part, f"{where}{k}.")
                 for k, part in enumerate(zip(*values, strict=True))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, (str, bytes)):
        return list(values)
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        raise ValueError(f"field {where[:-1]} of the samples has shapes {shapes}; one batch needs "
                         "one shape. Pad them in your own function: DataLoader(..., collate=).")
    return np.stack(values)


# Streams of the samples; below 2**63 are those of weights, dropout and orders (sampler.py).
SAMPLE_STREAMS = 1 << 63


class DataLoader:
    """Iterates over batches: tuples of arrays, in the sampler's order whatever `prefetch` is.
    sampler:    gives indices: DistributedSampler, any sequence; None for 0, 1, 2, ...
    shuffle:    instead of a sampler, a new random order for each pass, drawn from `generator` or
                the default one. On several ranks every rank would see all samples: there pass a
                DistributedSampler.
    batch_sampler:  gives lists of indices, in place of batch_size, sampler and drop_last.
    drop_last:  leave out a last batch smaller than batch_size.
    prefetch:   batches loaded ahead by a thread: 2 means one is ready and one is being loaded; 0
                loads in the caller's thread.
    collate:    from a list of samples to a batch; collate_fn is PyTorch's name for it.
    device:     'cuda' or 'cuda:i': the arrays of a batch come as CuPy arrays there, copied in the
                background through pinned memory (upload.py); None: NumPy arrays.
    A dataset of class IterableDataset is read in its own order, and the loader has no length then.

    An exception in the dataset is raised in the loop that iterates. The thread ends with the
    iteration, also after `break`.

    A dataset may draw from the default generator, to augment: sample i of epoch e gets a stream of
    its own, of the seed that the caller's generator has at the start of the pass. So the numbers
    are the same whatever prefetch, the batches, the number of ranks, and after a resumed run; they
    differ between epochs: the sampler's, or if it counts none, the passes of this loader."""

    def __init__(self, dataset, batch_size=1, sampler=None, drop_last=False, prefetch=2,
                 collate=stack, device=None, *, shuffle=False, batch_sampler=None, generator=None,
                 collate_fn=None):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more, got {prefetch}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.prefetch, self.collate = prefetch, collate_fn or collate
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
        self.device = None if device == "cpu" else device
        self.n_passes = 0

    def __len__(self):
        if self.is_stream:
            raise TypeError(f"a DataLoader of {type(self.dataset).__name__}, a stream, has no "
                            "len()")
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self):
        # Here, not in the thread: starting a pass is the sampler's change of state.
        upload = None if self.device is None else Upload(self.device)
        epoch = getattr(self.sampler, "epoch", self.n_passes)
        self.n_passes += 1
        seed, streams = default_generator().seed, SAMPLE_STREAMS + (epoch << 36)
        if self.is_stream:
            chunks = self._chunks(iter(self.dataset), Generator(seed, streams))
        elif self.batch_sampler is not None:
            chunks = iter(self.batch_sampler)
        else:
            chunks = self._chunks(iter(self.sampler), default_generator())
        loaded = self._load(chunks, upload, seed, streams)
        return self._hand_over(_ahead(loaded, self.prefetch) if self.prefetch else loaded, upload)

    def _chunks(self, items, generator):
        while True:
            with using(generator):
                chunk = list(itertools.islice(items, self.batch_size))
            if not chunk:
                return
            if len(chunk) < self.batch_size and self.drop_last:
                return
            yield chunk

    def _load(self, chunks, upload, seed, streams):
        for chunk in chunks:
            try:
                samples = chunk if self.is_stream else [
                    self._sample(i, seed, streams) for i in chunk]
                batch = self.collate(samples)
                batch = batch if upload is None else upload.start(batch)
            except Exception as error:
                if not self.is_stream:
                    error.add_note(f"while loading samples {chunk}")
                raise
            yield len(chunk), batch

    def _sample(self, index, seed, streams):
        number = index if isinstance(index, (int, np.integer)) else 0
        with using(Generator(seed, (streams + int(number)) % (1 << 64))):
            return self.dataset[index]

    def _hand_over(self, loaded, upload):
        advance = getattr(self.sampler, "advance", None)  # a plain range keeps no position
        for n_samples, batch in loaded:
            if advance:
                advance(n_samples)
            yield batch if upload is None else upload.finish(batch)


def _ahead(items, n_ahead):
    """The items of an iterator; a thread computes up to `n_ahead` of them in advance."""
    free = threading.Semaphore(n_ahead)  # places ahead of the consumer
    done = queue.SimpleQueue()  # (item, None), then (None, how it ended)
    abandoned = threading.Event()

    def work():
        try:
            while True:
                free.acquire()
                if abandoned.is_set():
                    return
                done.put((next(items), None))
        except BaseException as error:  # StopIteration, as every pass ends, or a fault
            done.put((None, error))

    # daemon: a program that ends while an iterator is still held must not wait for its thread
    threading.Thread(target=work, name="minidl-loader", daemon=True).start()
    try:
        while True:
            item, end = done.get()
            if isinstance(end, StopIteration):
                return
            if end is not None:
                raise end  # with the thread's traceback: the line in the dataset is in it
            free.release()  # before the yield: the thread works while the consumer does
            yield item
    finally:
        abandoned.set()
        free.release()
