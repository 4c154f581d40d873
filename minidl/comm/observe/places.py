"""File and line of the user's code, for reports, ledgers and signatures.

    user_line(sys._getframe())        ("/home/me/train.py", 31): the innermost frame whose file is
                                      not minidl's; in a background job, where it was submitted
    spot("/home/me/train.py", 31)     train.py:31, in /home/me

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


@functools.cache  # the same few files again and again, and the question takes microseconds
def is_ours(filename):
    """Whether a file is minidl's, or Python's module threading."""
    return os.path.abspath(filename).startswith(_PACKAGE) or filename == threading.__file__


def user_frame(frame):
    """The innermost frame of the user's code, from `frame` up the stack; None if there is none."""
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(frame):
    """(file, line) of the user's code that led to this frame; None if there is none."""
    frame = user_frame(frame)
    return (frame.f_code.co_filename, frame.f_lineno) if frame else submitted_at.get(None)


def spot(filename, line):
    """file:line, the path relative to the current folder if the file is in it."""
    near = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return f"{filename if near.startswith('..') else near}:{line}"


def seen_at(frame):
    """file:line of the user's code in a thread, else of minidl's."""
    return said(_place(frame))


def said(place):
    """file:line of an entry of places_now(); None: of a thread that has ended."""
    return spot(*place[:2]) if place else "an unknown line"


def places_now():
    """{thread: (file, line, whether they are the user's)} of every thread.

    The frames are let go at once, and before anything that waits: while one is held, the arrays of
    its function live on after it has returned, and memory.record() would count them."""
    return {thread: _place(frame) for thread, frame in sys._current_frames().items()}


def _place(frame):
    user = user_frame(frame)
    at = user or frame
    return (at.f_code.co_filename, at.f_lineno, user is not None) if at else None
