"""The decorator of every collective. It labels the messages and tells the transport about the call.

    @collective
    def all_reduce(t, x, op=np.add): ...        a function of ring.py, so its messages have the
                                                label 'ring.all_reduce' in ledgers and errors
                                                (labels.py)

All ranks of t must call the same collectives, in the same order.

    job = ring.all_reduce(t, x, wait=False)     runs in the background (background.py). Do not
    total = job.wait()                          read or write x until wait() has returned

Test: tests/comm/test_collective.py   Used by: every algorithm
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from minidl.comm.call_code import code_of
from minidl.comm.checks import check_call
from minidl.comm.labels import NOTHING, _label, _running, _subject, label_of
from minidl.comm.tensors import has_tensor, with_tensors
from minidl.timeline import recording

if TYPE_CHECKING:
    import typing
    from collections.abc import Callable

    from minidl.hints import AsCollective, Collective, P, R_co

if TYPE_CHECKING:  # with `overload` alone, jedi (an editor's tool) would not read `def collective`
    @typing.overload
    def collective(fn: Callable[P, R_co]) -> Collective[P, R_co]:
        ...

    @typing.overload
    def collective(fn: None = None, *, own_args=(), own_rows=(), tensors=True) -> AsCollective:
        ...


def collective(fn=None, *, own_args=(), own_rows=(), tensors=True):
    """Decorator of a collective `fn(t, ...)`. The messages of fn get the label 'file.function',
    unless a caller has set a label.

    Before fn runs, `t.entering` is called, unless another collective calls fn. All ranks must pass
    the same arguments, and arrays of the same dtype and shape (watch.py checks this rule). There
    are two exceptions:

    own_args   names of arguments that may differ, such as a buffer that only the root has
    own_rows   names of arrays whose first axes may have different lengths

    tensors    if True, the collective also accepts a Tensor in place of its array (tensors.py).
               If False, it treats a Tensor like any other object"""
    if fn is None:
        return functools.partial(collective, own_args=own_args, own_rows=own_rows, tensors=tensors)
    fn.own_args, fn.own_rows = own_args, own_rows
    label = label_of(fn)

    @functools.wraps(fn)
    def labelled(t, *args, wait=True, **kwargs):
        if tensors and has_tensor(args, kwargs):
            return with_tensors(labelled, label, t, args, kwargs, wait)
        if not wait:
            return t.in_background(functools.partial(labelled, **kwargs), *args)
        if _running.get(NOTHING) is not NOTHING:  # fn runs inside another collective
            return fn(t, *args, **kwargs)
        outermost = _label.get(label)
        name = outermost + _subject.get("")
        token = _running.set((code_of(fn, name, args, kwargs), outermost))
        try:
            if (lane := recording.get()) is not None:  # a profile is running
                return lane.collective(fn, t, args, kwargs)
            t.entering(fn, args, kwargs)
            return fn(t, *args, **kwargs)
        except (AttributeError, TypeError):
            check_call(name, t, *args, **kwargs)
            raise
        finally:
            _running.reset(token)

    return labelled


def in_step(loop):
    """Decorator of a function `loop(t, chunk, *args)` that does all steps of a collective.

    The simulator may run the loop once for all ranks (transport/lockstep.py). So the loop must
    contain no `if` that depends on the rank."""

    @functools.wraps(loop)
    def steps(t, chunk, *args):
        if not t.simulated or t.together(loop, chunk, args) is None:
            loop(t, chunk, *args)

    return steps
