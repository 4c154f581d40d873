"""Saves a snapshot during training: copies the state, and writes the copy during the next steps.

    main      step 50 | copy | step 51 | step 52 | step 53 | ...      exposed: the copy, and the
    thread                   |== sha256, write, fsync, rename ==|     wait for the previous save

    behind = Behind(t)
    behind.save("runs", step, model=model, optimizer=optimizer)     # the arguments of save()
    behind.wait()                                                   # the snapshot is on the disk

Memory: each rank has a copy of the contents of its file, until the file is written. The copy has
`n_bytes` bytes. If n ranks hold the same tensors, each rank writes 1 / n of their elements. With
Adam and X float32 weights, the copy then has 12 X / n bytes. With ZeRO, each rank writes its own
shards. If the model is divided over ranks, each tensor is also gathered on the rank that writes it.

Exposed time: the time to copy n_bytes in memory. The time to write to the disk is not exposed. If
writing takes longer than the steps between two saves, the second save waits for the first. So there
is never more than one copy.

On each rank a thread writes the files, in the order of the calls of save(). The threads communicate
over a duplicate of the transport. A crash at any moment does not damage the previous snapshot. If a
rank cannot write, the next save(), check() or wait() raises the SnapshotError of this rank on all
ranks.
Source: Mohan et al. 2021, "CheckFreq" (FAST): snapshot, then persist.
Test: tests/snapshot/test_behind.py   Used by: elastic/restart.py, heal.py
"""

from pathlib import Path

import numpy as np

from minidl import backend
from minidl.comm.transport.background import Background
from minidl.snapshot import snapshot


class Behind:
    """Saves snapshots in a thread. All ranks of t make a Behind, and call its methods together.

    after: another Behind of this rank. The new Behind then uses the thread of `after`. So all saves
           are written in the order of the calls. If None, the new Behind has its own thread.

    The attribute n_bytes is the number of bytes that the last save() copied. The attribute
    exposed_s is the number of seconds that the last save() took. The rank cannot train in this
    time."""

    def __init__(self, t, after=None):
        self.t, self.job = t, None
        self.background = Background(t) if after is None else after.background
        self._writers = t.subgroup(range(t.size))
        self.n_bytes, self.exposed_s, self._held = 0, 0.0, []

    def save(self, folder, step, *, model, optimizer=None, keep=2, **others):
        """Does the same as snapshot.save, but returns as soon as the state is copied. First waits
        for the previous save. If that save failed, raises its error."""
        start = self.t.time()
        self.wait()  # without this, two copies could be in memory
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
        """Raises the error of the last save if that save has failed already. Does not wait."""
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
    """Returns a copy in host memory of the elements that this rank writes, or None if the rank
    writes no elements."""
    values = piece.values()
    if piece.first == piece.end:
        return None
    host = backend.to_device(values, "cpu")
    # The array that comes from a GPU is a copy already.
    return host.copy() if isinstance(values, np.ndarray) else host


def _write(_, t, folder, step, taken, keep):
    with snapshot.writer(folder, t.rank) as problem:
        snapshot.agree(t, problem)
        snapshot.write(folder, step, t, taken, keep)
