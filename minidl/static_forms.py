"""A Function in PyTorch's form: static methods that take a context `ctx` and work on Tensors.

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gy):
            x, = ctx.saved_tensors
            return 2 * x * gy

ctx is the node itself. So an attribute that forward sets (ctx.scale = 3) can be read in backward.
The static methods become methods that take and return arrays (function.py). Arguments that are
arrays are wrapped into Tensors, and results are turned into arrays again. No graph is recorded
while a static method runs.
Test: tests/test_static_forms.py
"""

from minidl.backend import array_of
from minidl.mode import running
from minidl.tensor import Tensor


def adapt(cls):
    """Turns the static forward and backward of a class into methods on arrays. Does nothing if they
    are not static. Raises TypeError for PyTorch's form with setup_context."""
    own = vars(cls)
    if "setup_context" in own:
        raise TypeError(f"{cls.__name__}: wanted forward(ctx, ...); got a setup_context. Delete "
                        "setup_context, and save in forward what backward needs")
    for name in ("forward", "backward"):
        if isinstance(own.get(name), staticmethod):
            setattr(cls, name, _on_arrays(own[name].__func__))
            cls.save_for_backward = _save_for_backward
            cls.saved_tensors = property(_saved_tensors)
            cls.needs_input_grad = property(lambda ctx: tuple(ctx.needs))


def _on_arrays(static):
    def method(ctx, *values, **options):
        values = [Tensor(x) if _is_array(x) else x for x in values]
        with running(grad=False, autocast=None, intercept=None):
            results = static(ctx, *values, **options)
        return tuple(map(array_of, results)) if isinstance(results, tuple) else array_of(results)

    return method


def _is_array(x):
    return hasattr(x, "strides") and hasattr(x, "ndim")


def _save_for_backward(ctx, *tensors):
    ctx.save(*map(array_of, tensors))


def _saved_tensors(ctx):
    return tuple(None if x is None else Tensor(x) for x in ctx.saved)
