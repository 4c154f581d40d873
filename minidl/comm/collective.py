"""The decorator of every collective: it labels the messages, and tells the transport of the call.

    @collective
    def all_reduce(t, x, op=np.add): ...        in ring.py: 'ring.all_reduce' labels its
                                                messages, in ledgers and in errors

All ranks of t call it, in the same order as their other collectives. The outermost label counts:
what `hierarchical.all_reduce` sends through a ring has the label of `hierarchical`, and everything
inside `with t.named("weights"):` has the label "weights".

    job = ring.all_reduce(t, x, wait=False)     begins in the background (background.py); x belongs
    total = job.wait()                          to the job until wait() returns

While a collective runs, `current_code()` is a number that all ranks of the same call have alike:
the transports compare it (call_code.py).

Test: tests/comm/test_collective.py   Used by: every algorithm
"""

import contextlib
import contextvars
import functools

from minidl.comm.call_code import code_of
from minidl.timeline import recording

# One per thread and per greenlet, so a background task's are its own.
_label = contextvars.ContextVar("label")
_subject = contextvars.ContextVar("what the collectives of this block are about")
_inside = contextvars.ContextVar("the code of the running collective")


def collective(fn=None, *, own_args=(), own_rows=()):
    """Decorator: label the messages of `fn(t, ...)` 'file.function', unless a caller has.

    Before a collective that no other one calls, `t.entering` is called. All ranks must pass the
    same arguments (of arrays the same dtype and shape); watch.py checks that, except for

    own_args   names of arguments that may differ, such as a buffer that the root alone has
    own_rows   names of arrays whose first axis may differ"""
    if fn is None:
        return functools.partial(collective, own_args=own_args, own_rows=own_rows)
    fn.own_args, fn.own_rows = own_args, own_rows
    label = label_of(fn)

    @functools.wraps(fn)
    def labelled(t, *args, wait=True, **kwargs):
        if not wait:
            return t.in_background(functools.partial(labelled, **kwargs), *args)
        if _inside.get(0):
            return fn(t, *args, **kwargs)
        name = f"{_label.get(label)}{_subject.get('')}"
        token = _inside.set(code_of(fn, name, args, kwargs))
        # As `with named(label)`, which takes 2 us: an all-reduce of a few bytes takes ten.
        named = None if _label.get(None) is not None else _label.set(label)
        try:
            if (lane := recording.get()) is not None:  # of a profile
                return lane.collective(fn, t, args, kwargs)
            t.entering(fn, args, kwargs)
            return fn(t, *args, **kwargs)
        except (AttributeError, TypeError):
            from minidl.comm.checks import check_call  # here: it imports this file

            check_call(name, t, *args, **kwargs)
            raise
        finally:
            _inside.reset(token)
            if named is not None:
                _label.reset(named)

    return labelled


def in_step(loop):
    """Decorator of `loop(t, chunk, *args)`, the steps of a collective, in which no line asks for a
    rank: the simulator may run it once for all ranks (transport/lockstep.py)."""

    @functools.wraps(loop)
    def steps(t, chunk, *args):
        if not t.simulated or t.together(loop, chunk, args) is None:
            loop(t, chunk, *args)

    return steps


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
