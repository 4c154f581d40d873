"""File and line of the user's code, for reports, ledgers and signatures.

    user_line(sys._getframe())        ("/home/me/train.py", 31), the innermost frame outside of
                                      minidl. In a background job, the line that submitted the job
    spot("/home/me/train.py", 31)     "train.py:31", if the current folder is /home/me

Test: tests/comm/observe/test_watch.py, test_ledger.py   Used by: all of observe/, scheduler.py
"""

import contextvars
import functools
import os
import sys
import threading
from pathlib import Path

# (file, line) of the user's code that submitted the running background job.
submitted_at = contextvars.ContextVar("where the running job was submitted")

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


@functools.cache  # a call takes microseconds, and there are many calls for the same few files
def is_ours(filename):
    """Returns True if the file belongs to minidl, or is the file of Python's module `threading`."""
    return os.path.abspath(filename).startswith(_PACKAGE) or filename == threading.__file__


def user_frame(frame):
    """Returns the innermost frame of the user's code: `frame` or one of its callers. Returns None
    if there is no such frame."""
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(frame):
    """Returns (file, line) of the user's code that called this frame, directly or through minidl.
    In a background job this is the line that submitted the job. Returns None if there is no such
    line."""
    frame = user_frame(frame)
    return (frame.f_code.co_filename, frame.f_lineno) if frame else submitted_at.get(None)


def spot(filename, line):
    """Returns 'file:line' as a text. The path is relative if the file is in the current folder."""
    near = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return f"{filename if near.startswith('..') else near}:{line}"


def seen_at(frame):
    """Returns 'file:line' of the user's code that called this frame, directly or through minidl. If
    no caller is the user's code, returns the line of minidl's code."""
    return said(_place(frame))


def said(place):
    """Returns 'file:line' as a text, or "an unknown line" if `place` is None.

    place: a value of the dict places_now(). None means that the thread has ended."""
    return spot(*place[:2]) if place else "an unknown line"


def places_now():
    """Returns {thread: (file, line, True if it is the user's code)} of every thread.

    No frame is kept in the result. A kept frame keeps the arrays of its function alive after the
    function has returned, and memory.record() counts these arrays."""
    return {thread: _place(frame) for thread, frame in sys._current_frames().items()}


def _place(frame):
    user = user_frame(frame)
    at = user or frame
    return (at.f_code.co_filename, at.f_lineno, user is not None) if at else None
