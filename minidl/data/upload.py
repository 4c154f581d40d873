"""Copies the next batches to a GPU while the GPU computes.

    loading thread   stack into pinned memory │ copy stream: wait for free memory, copy ──► event
    training                                     compute stream: wait for the event, compute

No thread waits for a copy. The GPU memory of a batch comes from the compute stream's pool. Earlier
kernels in this stream may still use this memory, for instance for an activation. So the copy starts
after all work that is already queued in the compute stream. The compute stream waits for the copy
before it reads the batch. The pinned memory is kept until the copy has ended.
Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
Test: tests/data/test_upload.py
"""

import weakref
from collections import deque

import numpy as np

from minidl import backend
from minidl.cuda.host_memory import pinned, queue_copy
from minidl.data.collate import map_arrays


class Upload:
    """Copies a loader's batches to a GPU. Make the Upload in the thread that will use the batches.
    The current stream of this thread becomes the compute stream."""

    def __init__(self, device):
        self.xp = backend.import_cupy()
        self.index = int(backend.full_name(device).removeprefix("cuda:"))
        with self.xp.cuda.Device(self.index):
            self.compute = self.xp.cuda.get_current_stream()
            self.copies = self.xp.cuda.Stream(non_blocking=True)
        self.under_way = deque()  # (event, pinned array)
        weakref.finalize(self, _finish, self.copies, self.under_way)

    def start(self, batch):
        """Queues the copies of a batch. Returns (batch, event). The Tensors of this batch are on
        the device after the event. A NumPy array that is not in a Tensor is not copied."""
        while self.under_way and self.under_way[0][0].done:
            self.under_way.popleft()
        with self.xp.cuda.Device(self.index):
            batch = map_arrays(self._copy, batch)
            event = self.copies.record()
        return batch, event

    def _copy(self, x):
        if not isinstance(x, np.ndarray):
            return x
        host = pinned(self.xp, x.size, x.dtype).reshape(x.shape)
        host[...] = x
        with self.compute:
            there = self.xp.empty(x.shape, x.dtype)
            free = self.compute.record()  # after this event no earlier kernel uses this memory
        if x.nbytes:
            self.copies.wait_event(free)
            queue_copy(host, there, self.copies)
            self.under_way.append((self.copies.record(), host))
        return there

    def finish(self, started):
        """Returns the batch. Later work in the current stream waits for this batch's copies."""
        batch, event = started
        with self.xp.cuda.Device(self.index):
            self.xp.cuda.get_current_stream().wait_event(event)
        return batch


def _finish(stream, under_way):
    """Waits for all copies when the Upload is deleted. Pinned memory must not go back to its pool
    before its copy has ended."""
    stream.synchronize()
    under_way.clear()
