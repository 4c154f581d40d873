"""Casts and transfers: the same values in another dtype, on another device, or in new memory.

A cast between floating dtypes is differentiable: the backward walk casts the gradient to the
dtype of the input. Mixed precision uses this. A cast to integers or bool is not recorded in the
graph.
Test: tests/ops/test_cast.py
"""

import builtins
from contextlib import nullcontext

import numpy as np

from minidl import backend
from minidl.cuda.index_check import waiting
from minidl.function import Function
from minidl.tensor import Tensor


class Cast(Function):
    """x in another floating dtype."""
    arithmetic = False

    def forward(self, x, dtype):
        return x.astype(dtype)

    def backward(self, gy):
        return gy


class Transfer(Function):
    """x on another device."""
    arithmetic = False

    def forward(self, x, device):
        self.origin = backend.device_of(x)
        return self._moved(x, device)

    def backward(self, gy):
        return self._moved(gy, self.origin)

    def _moved(self, x, device):
        """Returns x on the device. Sets self.xp to the array library of the result, because the
        backward walk uses self.xp afterwards."""
        with waiting(x) if device == "cpu" else nullcontext():
            y = backend.to_device(x, device)
        self.xp = backend.xp_of([y])
        return y


class Clone(Function):
    """A copy in row-major order."""
    arithmetic = False

    def forward(self, x):
        return x.copy()

    def backward(self, gy):
        return gy


def to(input, *args, dtype=None, device=None, non_blocking=False, copy=False):
    """Returns x in another dtype, on another device, or both. There are four calls: x.to(dtype),
    x.to(device), x.to(device, dtype) and x.to(other_tensor). If nothing changes, returns x itself,
    or a copy with copy=True. non_blocking has no effect: each transfer is finished when the call
    returns. (cuda/host_memory.py has transfers that run while the GPU computes.)"""
    flags = [arg for arg in args if arg is True or arg is False]
    copy = copy or flags[1:] == [True]
    for arg in args[:len(args) - len(flags)]:
        if isinstance(arg, Tensor):
            dtype, device = arg.dtype, arg.device
        elif backend.is_device(arg):
            device = arg
        elif arg is not None:
            dtype = backend.as_dtype(arg)
    result = input
    if dtype is not None and input.dtype != dtype:
        result = (Cast.apply(input, dtype=np.dtype(dtype)) if backend.is_floating(dtype)
                  else Tensor(input.array.astype(dtype)))
    if device is not None and input.device != backend.full_name(device):
        result = Transfer.apply(result, device=device)
    return clone(input) if copy and result is input else result


def type(input, dtype):
    return to(input, dtype=dtype)


def clone(input):
    """Returns a copy. The graph records it."""
    return Clone.apply(input)


def contiguous(input):
    """Returns x itself if it is in row-major order, else a copy in row-major order."""
    return input if input.is_contiguous() else Clone.apply(input)


def cpu(input):
    return to(input, device="cpu")


def cuda(input, device="cuda"):
    """Returns x on a GPU. device: the name or the number of the GPU. The default is the current
    GPU."""
    return to(input, device=f"cuda:{device}" if isinstance(device, builtins.int) else device)


def _cast_to(name, dtype):
    def op(input):
        return to(input, dtype=dtype)
    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"Returns x.to({np.dtype(dtype)})."
    return op


half = _cast_to("half", np.float16)
float = _cast_to("float", np.float32)
double = _cast_to("double", np.float64)
int = _cast_to("int", np.int32)
long = _cast_to("long", np.int64)
bool = _cast_to("bool", np.bool_)
