"""Writing into a tensor's own memory: outside the graph, and counted, so that backward notices.

    x.copy_(y)   x.fill_(1)   x += y   x[2:] = y          x.version goes up by one

Where a graph is recorded, x += y makes a new tensor like x = x + y; elsewhere it is in place.
Test: tests/test_tensor.py
"""

import numpy as np

from minidl.backend import overwrite
from minidl.mode import is_grad_enabled
from minidl.ops import elementwise
from minidl.ops.index import index_of_arrays, within
from minidl.tensor import Tensor


def write(x, op, value):
    """x.data = op(x.data, value), into the same memory."""
    if is_grad_enabled() and x.requires_grad:
        raise RuntimeError("in-place change of a tensor that requires a gradient; do it under "
                           "`with minidl.no_grad():`, or build a new tensor")
    op(x._data, getattr(value, "_data", value), out=x._data, casting="same_kind")
    x.version += 1
    return x


def copy_(input, source):
    """Overwrite with `source` (Tensor, array or number), broadcast to this shape."""
    return write(input, _copy, source)


def zero_(input):
    return copy_(input, 0)


def fill_(input, value):
    return copy_(input, value)


def _copy(_, value, out, casting):
    """`value` into `out`, called as a ufunc. A number takes the dtype of `out`, whatever it is."""
    if isinstance(out, np.ndarray) and not hasattr(value, "__cuda_array_interface__"):
        np.copyto(out, value, casting=casting if hasattr(value, "dtype") else "unsafe")
    elif hasattr(value, "dtype"):
        overwrite(out, value, casting)  # from its device to this one
    else:
        out[...] = value


def _in_place(op, ufunc):
    """x += y and the like."""

    def method(self, value):
        records = is_grad_enabled() and not (self.is_leaf and self.requires_grad) and (
            self.requires_grad or getattr(value, "requires_grad", False))
        return op(self, value) if records else write(self, getattr(self._xp, ufunc), value)

    return method


def setitem(self, index, value):
    if is_grad_enabled() and (self.requires_grad or getattr(value, "requires_grad", False)):
        raise RuntimeError("assignment to elements is not recorded in the graph; use "
                           "minidl.where or masked_fill, or write under minidl.no_grad()")
    index = index_of_arrays(index)
    if not isinstance(self._data, np.ndarray):
        index = within(self._data, index, "x[index] = y")
    self._data[index] = value._data if isinstance(value, Tensor) else value
    self.version += 1


OPERATORS = {
    "__iadd__": _in_place(elementwise.add, "add"),
    "__isub__": _in_place(elementwise.sub, "subtract"),
    "__imul__": _in_place(elementwise.mul, "multiply"),
    "__itruediv__": _in_place(elementwise.div, "divide"),
    "__setitem__": setitem,
}
