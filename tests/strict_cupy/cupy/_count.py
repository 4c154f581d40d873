"""What a GPU would be slow at, counted: waits for the device, pageable uploads, launches.

    from cupy import stand_in
    with stand_in.counting() as count:
        step()
    assert count.waits == {}                    {"optim/clip.py:31 float": 2}: by line and kind
    assert count.uploads == {}                  NumPy arrays that reach the device not from pinned
    count.launches["layer_norm"], count.ops     kernels of ours by name; CuPy's own by name
"""

import gc
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_HERE = str(Path(__file__).parent)
_SKIP = (_HERE, str(Path(np.__file__).parent), "<frozen", "<__array")
_ours = {}  # file -> whether it is the stand-in's or NumPy's
_open = []  # the Counts that are counting


class Counts:
    """waits, uploads: Counter of "file:line kind"; launches, ops: Counter of kernel names."""

    def __init__(self):
        self.waits, self.uploads, self.launches, self.ops = (Counter() for _ in range(4))

    def __repr__(self):
        return (f"waits {dict(self.waits)}, uploads {dict(self.uploads)}, "
                f"{self.launches.total()} launches, {self.ops.total()} operations of CuPy")


@contextmanager
def counting():
    """Counts of what happens inside the block, in every thread."""
    gc.collect()  # a transport of an earlier test waits for its uploads when it is freed: now
    counts = Counts()
    _open.append(counts)
    try:
        yield counts
    finally:
        _open.remove(counts)


def waits(kind):
    """The host waits for the device here."""
    for counts in _open:
        counts.waits[f"{where()} {kind}"] += 1


def uploads(kind):
    """The device gets host memory that is not pinned here."""
    for counts in _open:
        counts.uploads[f"{where()} {kind}"] += 1


def launches(name):
    """One of the project's kernels is launched."""
    for counts in _open:
        counts.launches[name] += 1


def ops(name):
    """A kernel of CuPy's own is launched."""
    for counts in _open:
        counts.ops[name] += 1


def asker():
    """The nearest frame that is neither the stand-in's nor NumPy's."""
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
    """'ops/loss.py:31', of the asker or of a frame's (code, line)."""
    if frame is None:
        f = asker()
        frame = (f.f_code, f.f_lineno) if f else None
    if frame is None:
        return "?"
    code, line = frame
    return f"{code.co_filename.rpartition('/minidl/')[2]}:{line}"
