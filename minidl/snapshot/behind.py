"""Saves a snapshot during training: copies the state after a step, and writes it during the next.

    main      step 50 | copy | step 51 | step 52 | step 53 | ...      exposed: the copy, and the
    thread                   |== sha256, write, fsync, rename ==|     wait for the save before

    behind = Behind(t)
    behind.save("runs", step, model=model, optimizer=optimizer)     # the arguments of save()
    behind.wait()                                                   # at the end: it is on the disk

Memory: a copy of the contents of this rank's file (`n_bytes`), until the file is written. For
tensors that all n ranks hold, this is 1 / n of them: 12 X / n bytes for X float32 weights under
Adam. For ZeRO's shards it is the whole shard. If the model is divided over ranks, its tensors are
gathered on their writers during the copy.

Exposed time: n_bytes at the speed of a memory copy, not at the disk's speed. If writing takes
longer than the steps between two saves, the second save waits for the first. So there is never more
than one copy.

A thread of each rank writes the files, in the order of save(). The threads communicate over a
duplicate of the transport. A crash at any moment leaves the previous snapshot whole. If one rank
cannot write, the next save(), check() or wait() raises its SnapshotError on all ranks.
Source: Mohan et al. 2021, "CheckFreq" (FAST): snapshot, then persist.
Test: tests/snapshot/test_behind.py   Used by: elastic/restart.py, heal.py
"""

from pathlib import Path

import numpy as np

from minidl import backend
from minidl.comm.transport.background import Background
from minidl.snapshot import snapshot


class Behind:
    """Saves snapshots in a thread. All ranks of t make one and call its methods together.

    n_bytes: the bytes that the last save() copied.
    exposed_s: the seconds of the last save() in which the rank could not train.
    after: another Behind of this rank. Both then use the same thread, so that their saves are
           written in the order of the calls."""

    def __init__(self, t, after=None):
        self.t, self.job = t, None
        self.background = Background(t) if after is None else after.background
        self._writers = t.subgroup(range(t.size))
        self.n_bytes, self.exposed_s, self._held = 0, 0.0, []

    def save(self, folder, step, *, model, optimizer=None, keep=2, **others):
        """Does the same as snapshot.save, but returns as soon as the state is copied. It first
        waits for the save before, and raises the error of that save, if any."""
        start = self.t.time()
        self.wait()  # else two copies would be in memory
        t, rank, size, others = snapshot.check(self.t, model, keep, others)
        snapshot.agree(t, snapshot.refusal(
            Path(folder), step, model, optimizer, others, rank))
        live = snapshot.take(t, rank, size, model, optimizer, others)
        self._held, pieces = [], []
        for piece in live.pieces:
            values = _copied(piece)
            self._held += [] if values is None else [values]
            pieces.append(piece._replace(values=lambda values=values: values))
        self.n_bytes = sum(values.nbytes for values in self._held)
        self.job = self.background.submit(
            _write, self._writers, Path(folder), step, live._replace(pieces=pieces), keep)
        self.exposed_s = self.t.time() - start

    def check(self):
        """Raises the error of the last save, if that save has ended with one. Does not wait."""
        if self.job is not None and self.job.done():
            self.wait()

    def wait(self):
        """Waits until the last save is on the disk. Raises the error of that save, if any."""
        job, self.job = self.job, None
        if job is not None:
            job.wait()
        self._held = []

    def close(self):
        """Waits for the last save, then ends the thread."""
        self.wait()
        self.background.close()

    def communication_buffers(self):
        """Returns the copies, for memory.report(..., communication=[behind])."""
        return [] if self.job is None or self.job.done() else list(self._held)


def _copied(piece):
    """Returns a copy, on the host, of the elements of a tensor that this rank writes, or None if it
    writes none."""
    values = piece.values()
    if piece.first == piece.end:
        return None
    host = backend.to_device(values, "cpu")
    return host.copy() if isinstance(values, np.ndarray) else host  # else copied from a GPU


def _write(_, t, folder, step, taken, keep):
    with snapshot.writer(folder, t.rank) as problem:
        snapshot.agree(t, problem)
        snapshot.write(folder, step, t, taken, keep)
