"""The Mode: the settings under which ops run. Every `Function.apply` reads it once.

    with running(grad=False): ...          the block has a Mode that differs in one field
    mode = current()                       the Mode of this context: of this thread, of this rank

A Mode never changes: a block sets another Mode. Blocks can be nested, and each simulated rank has
its own Mode. no_grad, use_fused, amp.autocast, memory.record, offload and recompute are such
blocks.
Test: tests/test_mode.py
"""

from __future__ import annotations

import functools
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mode:
    """grad       True if a graph is recorded
    kernels    True if fused kernels may run                                (cuda/dispatch.py)
    replaying  True if this forward repeats an earlier forward              (memory/recompute.py)
    autocast   None, or an object that casts the inputs of each op          (precision/amp.py)
    ledger     None, or an object that counts the bytes of new arrays       (memory/ledger.py)
    intercept  None, or intercept(node, forward, arrays, options), which
               is called in place of forward and returns its result         (memory/recompute.py)
    packers    functions that may replace a saved array, called in order    (saved.py)"""

    grad: bool = True
    kernels: bool = True
    replaying: bool = False
    autocast: object = None
    ledger: object = None
    intercept: object = None
    packers: tuple = ()


_DEFAULT = Mode()
_mode = ContextVar("minidl.mode", default=_DEFAULT)
current = _mode.get


@contextmanager
def running(mode=None, **changes):
    """Runs the `with` block under `mode`, with the fields in `changes` changed. The default of
    `mode` is the current Mode."""
    token = _mode.set(replace(mode or current(), **changes))
    try:
        yield
    finally:
        _mode.reset(token)


def is_grad_enabled() -> bool:
    return current().grad


def set_grad_enabled(mode: bool):
    """A `with` block in which the graph is recorded (True) or not (False)."""
    return running(grad=bool(mode))


def no_grad(orig_func=None):
    """In the block `with no_grad():` ops record no graph and save no arrays. no_grad is also a
    decorator: `@no_grad()` or `@no_grad`."""
    block = running(grad=False)
    return block if orig_func is None else block(orig_func)


def inference_mode(mode=True):
    """Does the same as no_grad. PyTorch's inference_mode also forbids training with tensors that
    were made in the block. minidl allows this. `inference_mode(False)` has no effect.
    inference_mode is also a decorator."""
    if callable(mode):
        return no_grad(mode)
    return running(grad=False) if mode else running()


def enable_grad(orig_func=None):
    block = running(grad=True)
    return block if orig_func is None else block(orig_func)


def use_fused(flag: bool):
    """A `with` block in which fused kernels are used (True) or not (False). Outside of such a block
    fused kernels are used."""
    return running(kernels=bool(flag))


class NoRoom(Exception):
    """A kernel could not be compiled, because no folder has space left. No part of the op has
    run."""


kernels_given_up = False  # True if this process uses no kernels, because no folder has space


def give_up_kernels(error):
    """Ends the use of kernels on the CPU for this process, and warns once. error: the NoRoom that a
    call has raised. The caller then repeats this call, which now computes with NumPy."""
    global kernels_given_up
    if not kernels_given_up:
        kernels_given_up = True
        warnings.warn(f"{error}. From now on this process computes without kernels, with NumPy.",
                      RuntimeWarning, stacklevel=3)


def or_numpy(function):
    """A decorator for a function that launches one kernel, or checks whether a kernel may run. If
    there is no space to compile the kernel, the function is called a second time and uses NumPy."""
    @functools.wraps(function)
    def call(*args, **options):
        try:
            return function(*args, **options)
        except NoRoom as error:
            give_up_kernels(error)
            return function(*args, **options)

    return call


# `training` belongs to each module and is not a field of the Mode. A recompute must run with the
# same values of `training`. So this variable records the modules whose `training` was read.
_asked = ContextVar("minidl.mode.asked", default=None)


@contextmanager
def watched_training():
    """`with watched_training() as asked:` fills the dict `asked` with {module: its `training`}, for
    every module whose `training` is read in the block. If it is read several times, the first value
    counts. Before recomputation runs the block again, training_as(asked) must give the modules
    these values. Then the second run does the same as the first."""
    asked = {}
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)
        outer = _asked.get()
        if outer is not None:  # an outer block must note these modules, too
            for module, flag in asked.items():
                outer.setdefault(module, flag)


def note_training(module, flag):
    """Notes that the `training` of a module was read. The module calls this."""
    asked = _asked.get()
    if asked is not None:
        asked.setdefault(module, flag)


@contextmanager
def training_as(flags):
    """A `with` block in which each module of {module: flag} has `training` = flag. After the block
    each module has its old value again."""
    before = [(module, module.training) for module in flags]
    for module, flag in flags.items():
        module.training = flag
    try:
        yield
    finally:
        for module, flag in before:
            module.training = flag
