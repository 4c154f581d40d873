"""Casts and transfers: the same values in another dtype, on another device, in memory of their own.

A cast between floating dtypes is differentiable: its gradient is cast back by the walk, which is
all that mixed precision needs. A cast to integers or bool leaves the graph.

Test: tests/ops/test_cast.py
"""

import numpy as np

from minidl import backend
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
        return backend.to_device(x, device)

    def backward(self, gy):
        return backend.to_device(gy, self.origin)


class Clone(Function):
    """A copy in row-major order."""

    arithmetic = False

    def forward(self, x):
        return x.copy()

    def backward(self, gy):
        return gy


def to(input, *args, dtype=None, device=None, copy=False):
    """x.to(dtype), x.to(device), x.to(device, dtype), x.to(other_tensor): x itself where nothing
    changes, unless `copy`."""
    for arg in args:
        if isinstance(arg, Tensor):
            dtype, device = arg.dtype, arg.device
        elif backend.is_device(arg):
            device = arg
        elif arg is not None:
            dtype = backend.as_dtype(arg)
    result = input
    if dtype is not None and input.dtype != dtype:
        if backend.is_floating(dtype):
            result = Cast.apply(result, dtype=np.dtype(dtype))
        else:
            result = Tensor(result._data.astype(dtype))
    if device is not None and not _is_on(result, device):
        result = Transfer.apply(result, device=device)
    return clone(input) if copy and result is input else result


def _is_on(input, device):
    return input.device == ("cuda:0" if device == "cuda" else device)


def type(input, dtype):
    return to(input, dtype=dtype)


def clone(input):
    """A copy, recorded in the graph."""
    return Clone.apply(input)


def contiguous(input):
    """x itself if it is in row-major order, else a copy that is."""
    return input if input.is_contiguous() else Clone.apply(input)


def cpu(input):
    return to(input, device="cpu")


def cuda(input, device="cuda"):
    return to(input, device=device)


def half(input):
    return to(input, dtype=np.float16)


def float(input):
    return to(input, dtype=np.float32)


def double(input):
    return to(input, dtype=np.float64)


def int(input):
    return to(input, dtype=np.int32)


def long(input):
    return to(input, dtype=np.int64)


def bool(input):
    return to(input, dtype=np.bool_)
