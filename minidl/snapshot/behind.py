"""Snapshots that do not wait: the state is copied between two steps, and written behind the next.

    main      step 50 | copy | step 51 | step 52 | step 53 | ...      exposed: the copy, and what
    thread                   |== sha256, write, fsync, rename ==|     is left of the one before

    behind = Behind(t)
    behind.save("runs", step, model=model, optimizer=optimizer)     # the arguments of save()
    behind.wait()                                                   # at the end: it is on the disk

Held beside the state: what this rank's file holds (`n_bytes`), from the copy to the file's end.
Of what all n ranks have, such as the 12 X bytes of X float32 weights under Adam, that is 12 X / n;
of ZeRO's shards all. A model that is divided over ranks is gathered to its writers at the copy.
Exposed: n_bytes at the speed of a copy, instead of the disk's; a snapshot that takes longer than
the steps between two of them is waited for, so that there is never more than one copy.

The files are written in save()'s order by a thread of each rank, which talk over a duplicate of the
transport: a crash at any moment leaves the snapshot before whole. If one of the ranks cannot write,
the next save(), check() or wait() raises its SnapshotError on all ranks.
Source: Mohan et al. 2021, "CheckFreq" (FAST): snapshot, then persist.
Test: tests/snapshot/test_behind.py   Used by: elastic/restart.py, heal.py
"""

from pathlib import Path

import numpy as np

from minidl import backend
from minidl.comm.transport.background import Background
from minidl.snapshot import snapshot


class Behind:
    """All ranks of t make one and call together. What the last save() cost: n_bytes, copied and
    held until it is written; exposed_s, in which the rank could not train.

    after: another Behind of this rank, whose saves are written before those that follow them."""

    def __init__(self, t, after=None):
        self.t, self.job = t, None
        self.background = Background(t) if after is None else after.background
        self._writers = t.subgroup(range(t.size))
        self.n_bytes, self.exposed_s, self._held = 0, 0.0, []

    def save(self, folder, step, *, model, optimizer=None, keep=2, **others):
        """As snapshot.save, but returns when the state is copied."""
        start = self.t.time()
        self.wait()  # a second copy would be needed
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
        """Raise the error of the last save, if it has ended with one."""
        if self.job is not None and self.job.done():
            self.wait()

    def wait(self):
        """Return when the last save is on the disk; raises its error."""
        job, self.job = self.job, None
        if job is not None:
            job.wait()
        self._held = []

    def close(self):
        self.wait()
        self.background.close()

    def communication_buffers(self):
        """The copies, for memory.report(..., communication=[behind])."""
        return [] if self.job is None or self.job.done() else list(self._held)


def _copied(piece):
    """The elements that this rank writes of a tensor, in memory of their own; None if none."""
    values = piece.values()
    if piece.first == piece.end:
        return None
    host = backend.to_device(values, "cpu")
    return host.copy() if isinstance(values, np.ndarray) else host  # else it comes from a GPU


def _write(_, t, folder, step, taken, keep):
    with snapshot.writer(folder, t.rank) as problem:
        snapshot.agree(t, problem)
        snapshot.write(folder, step, t, taken, keep)
