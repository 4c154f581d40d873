"""Writes into a tensor's own memory. Each write adds 1 to x.version, so that backward notices the
change.

    x.copy_(y)   x.fill_(1)   x += y   x[2:] = y

If a graph is recorded, x += y makes a new tensor, as x = x + y does. Otherwise it writes in place.
x[2:] = y always writes in place, and the graph records it. The same holds for x.copy_(y), and for
each op whose name ends in an underscore.
Test: tests/test_tensor.py
"""

import numpy as np

from minidl import backend
from minidl.backend import overwrite
from minidl.mode import is_grad_enabled
from minidl.ops import elementwise
from minidl.ops.index import Setitem, arrays_kept, parts_of, put, steps
from minidl.ops.select import where
from minidl.saved import Memory, note
from minidl.tensor import Tensor


def write(x, op, value):
    """Computes op(x.array, value) and writes it into x's memory, outside of the graph. Returns x.
    Raises RuntimeError if x requires a gradient and a graph is recorded."""
    if is_grad_enabled() and x.requires_grad:
        raise RuntimeError("an in-place operation must not change a tensor that requires a "
                           "gradient; use `with minidl.no_grad():`, or make a new tensor")
    op(x.array, backend.array_of(value), out=x.array, casting="same_kind")
    x.version += 1
    return x


def copy_(input, source):
    """Overwrites the tensor with `source`, a Tensor, array or number. `source` is broadcast to the
    tensor's shape. Returns the tensor."""
    if records(input, source):
        if isinstance(source, Tensor):
            source = source.to(dtype=input.dtype, device=input.device)
        everywhere = Tensor(input._xp.ones(input.array.shape, bool))
        return become(input, "copy_", lambda old: where(everywhere, source, old))
    return write(input, _copy, source)


def records(*values):
    """Returns True if a graph is recorded and one of the values requires a gradient."""
    return is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in values)


def become(x, name, op):
    """Writes op(x) into x's memory, and records this in the graph, which then uses a copy of the
    old x. Returns x. Raises RuntimeError for a leaf that requires a gradient. Also raises
    RuntimeError for a view: the write changes the tensor that owns the memory, but the graph does
    not record this change."""
    if x.is_leaf and x.requires_grad:
        raise RuntimeError(f"{name} must not change a leaf that requires a gradient; call "
                           f"{name} under `with minidl.no_grad():`")
    if x.array.base is not None and x._memory is not None:
        raise RuntimeError(f"{name} must not change a view (a slice, a reshape, a transpose). The "
                           "memory of a view belongs to another tensor, and the graph does not "
                           "record that the other tensor changes. Write into the other tensor, or "
                           "into x.clone()")
    before = Tensor._from(x.array.copy(), x.grad_fn, x.slot)
    y = check_fit(op(before), x, name).to(x.dtype)
    _copy(None, y.array, x.array, "same_kind")
    _take_the_place(x, y)
    return x


def _take_the_place(x, y):
    """Puts x in the place of y in the graph: x becomes the result of y's node. The caller has
    already written the values into x's memory."""
    x.grad_fn, x.slot, x._requires_grad = y.grad_fn, y.slot, y.requires_grad
    before = x.memory
    x._memory = Memory()
    x.version = before.version = before.version + 1
    before.replaced = True


def check_fit(y, x, name):
    """Returns y. Raises ValueError if y cannot be written into x: if y has another shape, or a
    dtype of a higher kind. For example, floating numbers cannot be written into integers."""
    kind = backend.promote_types(y.dtype, x.dtype).kind
    if y.shape != x.shape or kind != np.dtype(x.dtype).kind:
        raise ValueError(f"{name}: the result has dtype {y.dtype} and shape {tuple(y.shape)}; it "
                         f"cannot be written into a tensor of dtype {x.dtype} and shape "
                         f"{tuple(x.shape)}")
    return y


def zero_(input):
    return copy_(input, 0)


def fill_(input, value):
    return copy_(input, value)


def _copy(_, value, out, casting):
    """Copies `value` into `out`. `write` calls this function like a ufunc, so it has the arguments
    of a ufunc. A Python number is always cast to the dtype of `out`."""
    if isinstance(out, np.ndarray) and not hasattr(value, "__cuda_array_interface__"):
        np.copyto(out, value, casting=casting if hasattr(value, "dtype") else "unsafe")
    elif hasattr(value, "dtype"):
        overwrite(out, value, casting)  # `value` may be on another device
    else:
        out[...] = value


def _in_place(op, ufunc):
    """Returns a method of Tensor for an operator such as +=."""

    def method(self, value):
        records = is_grad_enabled() and not (self.is_leaf and self.requires_grad) and (
            self.requires_grad or getattr(value, "requires_grad", False))
        return op(self, value) if records else write(self, getattr(self._xp, ufunc), value)

    return method


def setitem(self, index, value):
    """self[index] = value, in place. If a graph is recorded, self becomes the result of the
    assignment. The gradient of the written elements then goes to `value`. The gradient of all other
    elements goes to the old self."""
    op = "x[index] = y"
    parts = parts_of(self, index, op)
    array = backend.plain_array(value)
    shape = getattr(array, "shape", ())
    # the number of dimensions of size 1 at the beginning of the shape
    n_ones = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    if is_grad_enabled() and (self.requires_grad or getattr(value, "requires_grad", False)):
        if isinstance(value, Tensor):
            array = value.to(self.dtype).reshape(shape[n_ones:])
        _assign(self, parts, array, arrays_kept(index, parts))
    else:
        if n_ones:
            array = array.reshape(shape[n_ones:])
        if shape:
            array = backend.to_device(array, backend.device_of(self.array))
        put(self.array, steps(self.array, parts, op), array)
    self.version += 1


def _assign(x, parts, value, places):
    """Records x[index] = value as a node of the graph, and makes x the result of this node. places:
    the Tensors in the index. Raises RuntimeError for a leaf that requires a gradient, and for a
    view."""
    if x.is_leaf and x.requires_grad:
        raise RuntimeError("an assignment must not change elements of a leaf that requires a "
                           "gradient; use `with minidl.no_grad():`, or write into x.clone()")
    if x.array.base is not None:
        raise RuntimeError("an assignment must not change elements of a view (a slice, a reshape, "
                           "a transpose). The memory of a view belongs to another tensor, and the "
                           "graph does not record that the other tensor changes. Write into the "
                           "other tensor, or into x.clone()")
    y = Setitem.apply(x, value, index=parts)
    note(y, places)
    _take_the_place(x, y)


OPERATORS = {
    "__iadd__": _in_place(elementwise.add, "add"),
    "__isub__": _in_place(elementwise.sub, "subtract"),
    "__imul__": _in_place(elementwise.mul, "multiply"),
    "__itruediv__": _in_place(elementwise.div, "divide"),
    "__setitem__": setitem,
}
