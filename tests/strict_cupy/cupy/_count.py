"""Counts what would make a GPU slow: waits for the device, pageable uploads, launches.

    from cupy import stand_in
    with stand_in.counting() as count:
        step()
    assert count.waits == {}                    by line and kind: {"optim/clip.py:31 float": 2}
    assert count.uploads == {}                  uploads from memory that is not pinned
    count.launches["layer_norm"], count.ops     our kernels by name; CuPy's own kernels by name
"""

import gc
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_HERE = str(Path(__file__).parent)
_SKIP = (_HERE, str(Path(np.__file__).parent), "<frozen", "<__array")
_ours = {}  # {file: True if it belongs to the stand-in or NumPy}
_open = []  # the Counts of the blocks that are running


class Counts:
    """waits, uploads: Counter of "file:line kind"; launches, ops: Counter of kernel names."""

    def __init__(self):
        self.waits, self.uploads, self.launches, self.ops = (Counter() for _ in range(4))

    def __repr__(self):
        return (f"waits {dict(self.waits)}, uploads {dict(self.uploads)}, "
                f"{self.launches.total()} launches, {self.ops.total()} operations of CuPy")


@contextmanager
def counting():
    """Yields the Counts of all that happens inside the block, in every thread."""
    gc.collect()  # frees transports of earlier tests now, because they wait for their uploads
    counts = Counts()
    _open.append(counts)
    try:
        yield counts
    finally:
        _open.remove(counts)


def waits(kind):
    """Counts a wait of the host for the device."""
    for counts in _open:
        counts.waits[f"{where()} {kind}"] += 1


def uploads(kind):
    """Counts an upload of host memory that is not pinned."""
    for counts in _open:
        counts.uploads[f"{where()} {kind}"] += 1


def launches(name):
    """Counts a launch of one of the project's kernels."""
    for counts in _open:
        counts.launches[name] += 1


def ops(name):
    """Counts a launch of one of CuPy's own kernels."""
    for counts in _open:
        counts.ops[name] += 1


def asker():
    """Returns the nearest frame outside the stand-in and NumPy."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = _ours.get(file)
        if ours is None:
            ours = _ours[file] = file.startswith(_SKIP) or file.endswith("contextlib.py")
        if not ours:
            return frame
        frame = frame.f_back


def where(frame=None):
    """Returns a place such as 'ops/loss.py:31', for asker() or for a frame's (code, line)."""
    if frame is None:
        f = asker()
        frame = (f.f_code, f.f_lineno) if f else None
    if frame is None:
        return "?"
    code, line = frame
    return f"{code.co_filename.rpartition('/minidl/')[2]}:{line}"
