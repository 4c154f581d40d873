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

from minidl.data.upload import Upload


def stack(samples):
    """Samples, tuples of arrays and numbers, to a tuple of arrays (batch_size, ...)."""
    if not isinstance(samples[0], tuple):
        samples = [(s,) for s in samples]
    fields = []
    for k, field in enumerate(zip(*samples, strict=True)):
        shapes = sorted({np.shape(value) for value in field})
        if len(shapes) > 1:
            raise ValueError(f"field {k} of the samples has shapes {shapes}; one batch needs one "
                             "shape. Pad them in your own function: DataLoader(..., collate=).")
        fields.append(np.stack(field))
    return tuple(fields)


class DataLoader:
    """Iterates over batches: tuples of arrays, in the sampler's order whatever `prefetch` is.
    sampler:    gives indices: DistributedSampler, any sequence; None for 0, 1, 2, ...
    drop_last:  leave out a last batch smaller than batch_size.
    prefetch:   batches loaded ahead by a thread: 2 means one is ready and one is being loaded; 0
                loads in the caller's thread.
    collate:    from a list of samples to a batch.
    device:     'cuda' or 'cuda:i': the arrays of a batch come as CuPy arrays there, copied in the
                background through pinned memory (upload.py); None: NumPy arrays.

    An exception in the dataset is raised in the loop that iterates. The thread ends with the
    iteration, also after `break`. It has its own default random generator: a dataset that draws
    random numbers should make a Generator(seed, stream) from the index."""

    def __init__(self, dataset, batch_size, sampler=None, drop_last=False, prefetch=2,
                 collate=stack, device=None):
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more, got {prefetch}")
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.sampler = range(len(dataset)) if sampler is None else sampler
        self.prefetch, self.collate = prefetch, collate
        self.device = None if device == "cpu" else device

    def __len__(self):
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self):
        # Here, not in the thread: starting a pass is the sampler's change of state.
        upload = None if self.device is None else Upload(self.device)
        loaded = self._load(iter(self.sampler), upload)
        return self._hand_over(_ahead(loaded, self.prefetch) if self.prefetch else loaded, upload)

    def _load(self, indices, upload):
        while chunk := list(itertools.islice(indices, self.batch_size)):
            if len(chunk) < self.batch_size and self.drop_last:
                return
            try:
                batch = self.collate([self.dataset[i] for i in chunk])
                batch = batch if upload is None else upload.start(batch)
            except Exception as error:
                error.add_note(f"while loading samples {chunk}")
                raise
            yield len(chunk), batch

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
