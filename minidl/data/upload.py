"""Batches on their way to a GPU, while it computes the ones before.

    loading thread   stack into pinned memory │ copy stream: wait for a free place, copy ──► event
    training                                     compute stream: wait for the event, compute

No thread waits for a copy. The place of a batch is memory of the compute stream: it may have been
an activation a moment ago, so the copy comes after what that stream has been given by then; and the
compute stream reads it after the copy. The pinned memory is kept until its copy has ended.
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
    """Copies of a loader's batches to a device; made in the thread that will use them."""

    def __init__(self, device):
        self.xp = backend.import_cupy()
        self.index = int(backend.full_name(device).removeprefix("cuda:"))
        with self.xp.cuda.Device(self.index):
            self.compute = self.xp.cuda.get_current_stream()
            self.copies = self.xp.cuda.Stream(non_blocking=True)
        self.under_way = deque()  # (event, pinned array)
        weakref.finalize(self, _finish, self.copies, self.under_way)

    def start(self, batch):
        """(the batch with its Tensors on the device, the event behind their copies). A NumPy array
        that a collate function of the user's has left in it stays where it is."""
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
            free = self.compute.record()  # whoever had this memory before has done with it
        if x.nbytes:
            self.copies.wait_event(free)
            queue_copy(host, there, self.copies)
            self.under_way.append((self.copies.record(), host))
        return there

    def finish(self, started):
        """The batch; what is put on the current stream from now on comes after its copies."""
        batch, event = started
        with self.xp.cuda.Device(self.index):
            self.xp.cuda.get_current_stream().wait_event(event)
        return batch


def _finish(stream, under_way):
    """At the end of a pass: pinned memory may not go back to its pool before its copy has ended."""
    stream.synchronize()
    under_way.clear()
