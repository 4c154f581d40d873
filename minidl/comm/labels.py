"""What the running collective is called, and what it is about: for ledgers, watches and errors.

    ring.all_reduce(t, x)                   its messages have the label 'ring.all_reduce'
    with t.named("weights"): ...            everything inside has the label "weights"
    with about("bucket 3"): ...             the ranks compare this, too, and errors name it

The outermost label counts: what `hierarchical.all_reduce` sends through a ring has the label of
`hierarchical`. While a collective runs, `current_code()` is a number that is equal on all ranks of
the same call. The transports compare it (call_code.py).

Test: tests/comm/test_collective.py   Used by: collective.py, checks.py, the transports
"""

import contextlib
import contextvars

# One per thread and per greenlet, so a background task's are its own.
_label = contextvars.ContextVar("label")
_subject = contextvars.ContextVar("what the collectives of this block are about")
_inside = contextvars.ContextVar("the code of the running collective")


@contextlib.contextmanager
def named(label):
    """Label the messages of this block, unless a caller has done so."""
    if _label.get(None) is not None:
        yield
        return
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


@contextlib.contextmanager
def about(subject):
    """Say what this block's collectives move, `with about("bucket 3")`: the ranks compare that,
    too, and errors name it. Ledgers keep the collective's label."""
    token = _subject.set(f" of {subject}")
    try:
        yield
    finally:
        _subject.reset(token)


def current_subject():
    """' of bucket 3', or nothing."""
    return _subject.get("")


def label_of(fn):
    """'ring.all_reduce': file and name of a function."""
    return f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}"


def in_collective():
    """Whether this task is inside a collective."""
    return bool(_inside.get(0))


def current_code():
    """The code of the collective in which this task is (call_code.py); 0 outside of them."""
    return _inside.get(0)


def current_label(default="point-to-point"):
    """The label of the running collective or block."""
    return _label.get(None) or default
