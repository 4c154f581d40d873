"""Loads the newest snapshot that is undamaged for all ranks.

If a snapshot is damaged, its index is renamed, and a line on stderr reports this. Then the previous
snapshot is tried.

Test: tests/elastic/test_restart.py   Used by: restart.py, heal.py
"""

import sys

from minidl.comm import objects as messages
from minidl.snapshot import folder as snapshots
from minidl.snapshot.snapshot import SnapshotError


def resume(t, parts, n_steps):
    """Loads the newest undamaged snapshot, if there is one. Returns the number of the next step,
    which is 0 if there is no snapshot. All ranks must call resume().

    parts: a parts.Parts. Raises SnapshotError if the folder has a snapshot of a step after
    n_steps."""
    at = 0
    for step in messages.broadcast(t, parts.steps() if t.rank == 0 else None):
        if step > n_steps:
            raise SnapshotError(
                f"rank {t.rank}: {parts.folder} holds a snapshot of step {step}, but this run has "
                f"only {n_steps} steps. Does the folder belong to another run? Give each run its "
                "own folder")
        damage = next(filter(None, messages.all_gather(t, parts.damage(step))), "")
        if not damage:
            parts.load(step)
            at = step
            break
        if t.rank == 0:
            aside = snapshots.set_aside(parts.folder, step)
            sys.stderr.write(f"elastic: {damage}. The index of this snapshot is now {aside}. An "
                             "earlier snapshot is tried; if there is none, the run begins at step "
                             "0\n")
    parts.begin(at)
    return at
