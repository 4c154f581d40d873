"""A collective also accepts a Tensor instead of its array. Then it returns Tensors.

    ring.all_reduce(t, p.grad)        sums the array of p.grad in place, and returns p.grad

A collective is not an operation of the autograd graph. So a collective raises an error for a Tensor
that an operation computed, and for a leaf that needs a gradient. If gradients are switched off, it
raises no error. The error comes from Tensor.array_to_change and tells what to do instead.

Test: tests/comm/test_tensors.py   Used by: collective.py
"""

from minidl.backend import address
from minidl.nest import each


def is_tensor(x):
    """Returns True if x is a Tensor. comm/ does not import the class Tensor. So this function
    looks for an attribute that only Tensors have."""
    return _tensor_classes[type(x)]


class _TensorClasses(dict):
    """For each class that was asked for: True if it is a class of Tensors."""

    def __missing__(self, cls):
        self[cls] = hasattr(cls, "array_to_change")
        return self[cls]


_tensor_classes = _TensorClasses()


def has_tensor(args, kwargs):
    """Returns True if an argument of a call is a Tensor. Every collective calls this function, and
    a small all-reduce takes only a few microseconds. So these are plain loops over the classes."""
    for x in args:
        if _tensor_classes[type(x)]:
            return True
    for x in kwargs.values():
        if _tensor_classes[type(x)]:
            return True
    return False


def place(array):
    """Returns (address, shape, strides, dtype) of an array. Two array objects with equal results
    have the same elements in the same memory."""
    return address(array), tuple(array.shape), tuple(array.strides), array.dtype


def with_tensors(call, name, t, args, kwargs, wait):
    """Calls call(t, *args, **kwargs), but passes the array of each Tensor instead of the Tensor.
    Returns the result with Tensors instead of arrays. If `wait` is False, returns a Job at once.

    If an array of the result belongs to a Tensor in the arguments, this Tensor is returned.
    Otherwise a new Tensor is made. name: the collective's label, for error messages."""
    tensors = [x for x in (*args, *kwargs.values()) if is_tensor(x)]
    given = {place(x.array): x for x in tensors}
    who = f"rank {t.rank}: {name}"

    def array(x):
        return x.array_to_change(who) if is_tensor(x) else x

    def tensor(result):
        if not hasattr(result, "strides"):  # not an array, but a count or None
            return result
        found = given.get(place(result))
        return type(tensors[0])(result) if found is None else found

    args = [array(x) for x in args]
    kwargs = {key: array(x) for key, x in kwargs.items()}

    def run(t, *args):
        return each(tensor, call(t, *args, **kwargs))

    return run(t, *args) if wait else t.in_background(run, *args)
