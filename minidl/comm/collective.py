"""The decorator of every collective: it labels the messages, and tells the transport of the call.

    @collective
    def all_reduce(t, x, op=np.add): ...        in ring.py: 'ring.all_reduce' labels its
                                                messages, in ledgers and in errors

All ranks of t call it, in the same order as their other collectives. Labels: labels.py.

    job = ring.all_reduce(t, x, wait=False)     begins in the background (background.py); x belongs
    total = job.wait()                          to the job until wait() returns

Test: tests/comm/test_collective.py   Used by: every algorithm
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from minidl.comm.call_code import code_of
from minidl.comm.checks import check_call
from minidl.comm.labels import _inside, _label, _subject, label_of
from minidl.comm.tensors import is_tensor, with_tensors
from minidl.timeline import recording

if TYPE_CHECKING:
    import typing
    from collections.abc import Callable

    from minidl.hints import AsCollective, Collective, P, R_co

if TYPE_CHECKING:  # with the name of its module, so that jedi reads the function itself
    @typing.overload
    def collective(fn: Callable[P, R_co]) -> Collective[P, R_co]:
        ...

    @typing.overload
    def collective(fn: None = None, *, own_args=(), own_rows=(), tensors=True) -> AsCollective:
        ...


def collective(fn=None, *, own_args=(), own_rows=(), tensors=True):
    """Decorator: label the messages of `fn(t, ...)` 'file.function', unless a caller has.

    Before a collective that no other one calls, `t.entering` is called. All ranks must pass the
    same arguments (of arrays the same dtype and shape); watch.py checks that, except for

    own_args   names of arguments that may differ, such as a buffer that the root alone has
    own_rows   names of arrays whose first axis may differ

    A Tensor may stand for its array (tensors.py), except where `tensors` is False: there any value
    is sent as it is."""
    if fn is None:
        return functools.partial(collective, own_args=own_args, own_rows=own_rows, tensors=tensors)
    fn.own_args, fn.own_rows = own_args, own_rows
    label = label_of(fn)

    @functools.wraps(fn)
    def labelled(t, *args, wait=True, **kwargs):
        if tensors and any(map(is_tensor, (*args, *kwargs.values()))):
            return with_tensors(labelled, label, t, args, kwargs, wait)
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
