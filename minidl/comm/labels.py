"""The label and the subject of the running collective. Ledgers, Watches and errors show them.

    ring.all_reduce(t, x)                   its messages have the label 'ring.all_reduce'
    with t.named("weights"): ...            all messages inside have the label "weights"
    with about("bucket 3"): ...             the ranks also compare this text, and errors show it

Only the outermost label is used. If `hierarchical.all_reduce` calls a ring, the ring's messages
have the label 'hierarchical.all_reduce'. While a collective runs, `current_code()` is a number that
is equal on all ranks of the same call. The transports compare this number (call_code.py).

Test: tests/comm/test_collective.py   Used by: collective.py, checks.py, the transports
"""

import contextlib
import contextvars

# Each thread and each greenlet has its own values, so a background task has its own label.
_label = contextvars.ContextVar("label")
_subject = contextvars.ContextVar("what the collectives of this block are about")
_running = contextvars.ContextVar("(code, label) of the running collective")
NOTHING = (0, None)  # no collective is running


@contextlib.contextmanager
def named(label):
    """`with named(label):` labels the messages of this block, unless an outer block or collective
    has a label."""
    if in_collective() or _label.get(None) is not None:
        yield
        return
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


@contextlib.contextmanager
def about(subject):
    """`with about("bucket 3"):` sets the subject of the collectives in this block. The subject is a
    text that tells what the collectives send. The ranks compare the subject, too, and errors show
    it. Ledgers show only the collective's label."""
    token = _subject.set(f" of {subject}")
    try:
        yield
    finally:
        _subject.reset(token)


def current_subject():
    """Returns a text such as ' of bucket 3' for the subject that `about` has set. Returns '' if no
    subject is set."""
    return _subject.get("")


def label_of(fn):
    """Returns 'file.name' of a function, such as 'ring.all_reduce'."""
    return f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}"


def in_collective():
    """Returns True if this task is inside a collective."""
    return _running.get(NOTHING) is not NOTHING


def current_code():
    """Returns the 29-bit code of the collective call that this task runs (call_code.py). Returns 0
    if this task runs no collective."""
    return _running.get(NOTHING)[0]


def current_label(default="point-to-point"):
    """Returns the label that messages of this task get now. Returns `default` if no collective runs
    and no `named` block is open."""
    return _running.get(NOTHING)[1] or _label.get(None) or default
