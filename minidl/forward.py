"""One call of a forward: its device, its precision, and its error messages.

    run(node, ...)      calls node.forward on the arrays' device, under autocast and recompute
    as_arrays           turns the results of forward into arrays
    share_memory        lets a result that is a view share the Memory of its input (saved.py)

Both apply functions use this file (function.py, fast_apply.py).
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

REPLACED = ("this tensor is a view, and x[index] = y or x.op_(y) changed its memory after the view "
            "was made. Its gradient would be wrong. Make the view after the change")


def run(node, mode, inputs, arrays, options):
    """Calls the forward of a node and returns its result. The call runs on the device of the
    arrays, under the settings of `mode`: autocast, recompute. An error of forward is raised again
    with the name of the op and the shapes of its inputs."""
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
    """Returns the result of forward as a tuple of arrays. This is needed because NumPy turns 0-d
    results into scalars."""
    outputs = result if type(result) is tuple else (result,)
    as_array = np.asarray if node.xp is np else backend.an_array
    return tuple(map(as_array, outputs))


def share_memory(outputs, inputs):
    """If an output is a view of an input, gives the output the Memory object of this input. So the
    output and the input share one version, which counts the writes to both of them."""
    for y in outputs:
        array, owner = y.array, y.array.base  # base is None if the array owns its memory
        for x in inputs:
            if isinstance(x, Tensor):
                its = x.array
                if its is array or its is owner or (owner is not None and its.base is owner):
                    y._memory = x.memory
                    break


def op_name(cls):
    """Returns the name by which users know a Function. If the class has an attribute `op`, this is
    the name. Otherwise the name is the class name in small letters, such as leaky_relu for
    LeakyRelu."""
    return vars(cls).get("op") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


EXPLAINED = (ValueError, IndexError, TypeError, AttributeError)


class WrongValue(ValueError, RuntimeError):
    """Wrong values or shapes. It is a ValueError, which NumPy raises, and also a RuntimeError,
    which PyTorch's ops raise. So `except ValueError` and `except RuntimeError` both catch it."""


class WrongType(TypeError, RuntimeError):
    """A wrong type. It is a TypeError, and also a RuntimeError, for the same reason as
    WrongValue."""


def raise_explained(error, node, arrays):
    """Raises the error of a forward again, with the name of the op in its message. Call it in an
    `except` block."""
    explained = _explained(error, node, arrays)
    if explained is error:
        raise  # `raise error from error` would make a loop in the chain of causes
    raise explained from error


def _explained(error, node, arrays):
    """Returns an error whose message names the op and its input shapes. Returns the same error if
    there is nothing to add."""
    if getattr(error, "explained", False):  # an op inside this op has explained the error already
        return error
    if isinstance(error, AttributeError):  # a list has no shape
        kinds = [type(x).__name__ for x in arrays if isinstance(x, (list, tuple, str))]
        if not kinds:
            return error
        error = TypeError(f"wants tensors or arrays, got {kinds[0]}; use minidl.tensor(...)")
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
