"""One call of a forward: where it runs, in which precision, and what its errors say.

    run(node, ...)      node.forward on the arrays' device, under autocast, bfloat16, recompute
    as_arrays           what it returned, as arrays
    share_memory        views among its results count their changes with what they look at

Both apply functions use it (function.py, fast_apply.py).
Test: tests/test_function.py
"""

import re
from functools import partial
from sys import modules

import numpy as np

from minidl import backend
from minidl.mode import NoRoom, give_up_kernels, or_numpy
from minidl.precision import bf16
from minidl.tensor import Tensor

REPLACED = ("this tensor looks at the memory of another one, into which x[index] = y or x.op_(y) "
            "was recorded since: its way back is no longer right. Make the view after that")


def run(node, mode, inputs, arrays, options):
    """forward, where the arrays lie, in the precision and in the manner that the blocks around the
    call ask for. An error says which op it was, and the shapes."""
    try:
        if "cupy" not in modules:
            return _run(node, mode, inputs, arrays, options)
        node.xp = backend.xp_of(arrays, type(node).__name__)
        with backend.using_device_of(arrays):
            return _run(node, mode, inputs, arrays, options)
    except EXPLAINED as error:
        raise_explained(error, node, arrays)


def _run(node, mode, inputs, arrays, options):
    cls = type(node)
    forward = node.forward
    if mode.autocast is not None:
        arrays = mode.autocast.cast(cls, inputs, arrays)
    if cls.promotes is not None:
        arrays = backend.promote(arrays, cls.promotes == "float")
    if "ml_dtypes" in modules and cls.arithmetic and bf16.involved(arrays, options):
        forward = partial(bf16.forward, node)
    if mode.intercept is not None:
        return mode.intercept(node, or_numpy(forward), arrays, options)
    try:
        return forward(*arrays, **options)
    except NoRoom as error:
        give_up_kernels(error)
        return forward(*arrays, **options)


def as_arrays(node, result):
    """What forward returned, as a tuple of arrays: of 0-d results NumPy makes scalars."""
    outputs = result if type(result) is tuple else (result,)
    as_array = np.asarray if node.xp is np else backend.an_array
    return tuple(map(as_array, outputs))


def share_memory(outputs, inputs):
    """Outputs that look at the memory of an input share its count of changes."""
    for y in outputs:
        array, owner = y.array, y.array.base  # None: it owns its memory
        for x in inputs:
            if isinstance(x, Tensor):
                its = x.array
                if its is array or its is owner or (owner is not None and its.base is owner):
                    y._memory = x.memory
                    break


def op_name(cls):
    """The name under which a user knows a Function: LeakyRelu -> leaky_relu, or its `op`."""
    return vars(cls).get("op") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


EXPLAINED = (ValueError, IndexError, TypeError, AttributeError)


class WrongValue(ValueError, RuntimeError):
    """A ValueError, as of NumPy. Also a RuntimeError: PyTorch's ops raise that one, so programs
    catch it."""


class WrongType(TypeError, RuntimeError):
    """A TypeError that is also a RuntimeError, for the same reason."""


def raise_explained(error, node, arrays):
    """In an `except` block: raise the error of a forward in words that name the op."""
    explained = _explained(error, node, arrays)
    if explained is error:
        raise  # from itself would be a circle, which readers of causes never leave
    raise explained from error


def _explained(error, node, arrays):
    """The error of a forward, naming the op and the shapes it was given."""
    if getattr(error, "explained", False):  # by an op that ran inside this one
        return error
    if isinstance(error, AttributeError):  # a list has no shape
        kinds = [type(x).__name__ for x in arrays if isinstance(x, (list, tuple, str))]
        if not kinds:
            return error
        error = TypeError(f"wants tensors or arrays, got {kinds[0]}; minidl.tensor(...) makes one")
    op = getattr(node, "name", None) or op_name(type(node))
    text = str(error)
    shapes = " and ".join(str(tuple(x.shape)) for x in arrays if hasattr(x, "shape"))
    if node.promotes and "broadcast" in text:
        text = f"{op}: shapes {shapes} do not broadcast"
    elif not text.startswith(f"{op}:"):
        text = f"{op}: {text} (input shapes: {shapes})"
    kinds = {IndexError: IndexError, ValueError: WrongValue, TypeError: WrongType}
    explained = next(kinds[k] for k in kinds if isinstance(error, k))(text)
    explained.explained = True
    return explained
