"""Snapshots: save a run, and go on from it to the same bits, on any number of ranks.

    snapshot  save and load: start here
    folder    which files a folder of snapshots holds, and what their names say
    lock      one writer at a time
    durable   writing so that a crash at any moment leaves the old or the new
    regions   which elements of which tensor a rank holds

    minidl.snapshot.save("runs", step, model=model, optimizer=optimizer)
    step = minidl.snapshot.load("runs", model=model, optimizer=optimizer)
"""

from minidl.snapshot.folder import at_step, latest, steps
from minidl.snapshot.snapshot import SnapshotError, load, save
