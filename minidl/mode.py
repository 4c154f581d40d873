"""How ops run: one immutable value, read once by every `Function.apply`.

    with running(grad=False): ...          a Mode that differs in one field, until the block ends
    mode = current()                       the Mode of this context: of this thread, of this rank

Blocks nest; each simulated rank has a Mode of its own. no_grad, use_fused, amp.autocast,
memory.record, offload and recompute are such blocks.            Test: tests/test_mode.py
"""

from __future__ import annotations

import functools
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mode:
    """grad       whether a graph is recorded
    kernels    whether fused kernels may run                                (cuda/dispatch.py)
    replaying  whether this forward is a repetition                         (memory/recompute.py)
    autocast   None, or what chooses the dtype of each op's inputs          (precision/amp.py)
    ledger     None, or what follows every array that is made               (memory/ledger.py)
    intercept  None, or intercept(node, forward, arrays, options) runs it   (memory/recompute.py)
    packers    what else may take a saved array's place, in order           (saved.py)"""

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
    """Run the block under `mode`, the current one unless given, with these fields changed."""
    token = _mode.set(replace(mode or current(), **changes))
    try:
        yield
    finally:
        _mode.reset(token)


def is_grad_enabled() -> bool:
    return current().grad


def set_grad_enabled(mode: bool):
    """Record the graph inside the `with` block (True) or do not (False)."""
    return running(grad=bool(mode))


def no_grad(orig_func=None):
    """`with no_grad():` builds no graph and saves nothing. Also a decorator: `@no_grad()`, or
    without the brackets."""
    block = running(grad=False)
    return block if orig_func is None else block(orig_func)


def inference_mode(mode=True):
    """Is no_grad. PyTorch's inference_mode also forbids later training with what the block makes;
    this one does not. `inference_mode(False)` changes nothing. Also a decorator."""
    if callable(mode):
        return no_grad(mode)
    return running(grad=False) if mode else running()


def enable_grad(orig_func=None):
    block = running(grad=True)
    return block if orig_func is None else block(orig_func)


def use_fused(flag: bool):
    """Use the fused kernels inside the block (True, the default everywhere) or do not."""
    return running(kernels=bool(flag))


class NoRoom(Exception):
    """A kernel could not be compiled: no folder has space left. Nothing was run."""


kernels_given_up = False  # whether this process computes with NumPy alone, for want of space


def give_up_kernels(error):
    """No kernel is launched on the CPU any more; the warning comes once. Call again what raised
    this NoRoom: it computes with NumPy now."""
    global kernels_given_up
    if not kernels_given_up:
        kernels_given_up = True
        warnings.warn(f"{error}. From now on this process computes without kernels, by NumPy.",
                      RuntimeWarning, stacklevel=3)


def or_numpy(function):
    """A decorator for what launches one kernel, or asks whether it may: without room to compile
    the kernel, the call is made again and finds that it may not."""
    @functools.wraps(function)
    def call(*args, **options):
        try:
            return function(*args, **options)
        except NoRoom as error:
            give_up_kernels(error)
            return function(*args, **options)

    return call


# Whether a module trains is its own, and no field of the Mode. A block notes who asked.
_asked = ContextVar("minidl.mode.asked", default=None)


@contextmanager
def watched_training():
    """`with watched_training() as asked:` fills `asked` with {module: its `training` when it was
    first asked}, for every module that is asked in the block: what a repetition must set."""
    asked = {}
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)
        outer = _asked.get()
        if outer is not None:  # a block around this one sees it, too
            for module, flag in asked.items():
                outer.setdefault(module, flag)


def note_training(module, flag):
    """Called by a module that is asked for `training`."""
    asked = _asked.get()
    if asked is not None:
        asked.setdefault(module, flag)


@contextmanager
def training_as(flags):
    """In the block each module of {module: flag} has this `training`; afterwards its own."""
    before = [(module, module.training) for module in flags]
    for module, flag in flags.items():
        module.training = flag
    try:
        yield
    finally:
        for module, flag in before:
            module.training = flag
