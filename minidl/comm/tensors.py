"""A Tensor may stand for its array in a collective; then the results are Tensors, too.

    ring.all_reduce(t, p.grad)        sums the array of p.grad in place, and returns p.grad

A collective is no operation of the graph. So it takes no result of one, and no leaf that wants a
gradient unless gradients are switched off: Tensor.array_to_change says what to do instead.

Test: tests/comm/test_tensors.py   Used by: collective.py
"""

from minidl.backend import address
from minidl.nest import each


def is_tensor(x):
    """Whether x is a Tensor. (comm/ does not import the engine: it knows one by this attribute.)"""
    return hasattr(x, "array_to_change")


def place(array):
    """Returns where an array is, and how: two arrays of one place are the same numbers."""
    return address(array), tuple(array.shape), tuple(array.strides), array.dtype


def with_tensors(call, name, t, args, kwargs, wait):
    """call(t, *args, **kwargs) with the arrays of its Tensors; its arrays come back as Tensors."""
    tensors = [x for x in (*args, *kwargs.values()) if is_tensor(x)]
    given = {place(x.array): x for x in tensors}
    who = f"rank {t.rank}: {name}"

    def array(x):
        return x.array_to_change(who) if is_tensor(x) else x

    def tensor(result):
        if not hasattr(result, "strides"):  # no array: a count, None
            return result
        found = given.get(place(result))
        return type(tensors[0])(result) if found is None else found

    args = [array(x) for x in args]
    kwargs = {key: array(x) for key, x in kwargs.items()}

    def run(t, *args):
        return each(tensor, call(t, *args, **kwargs))

    return run(t, *args) if wait else t.in_background(run, *args)
