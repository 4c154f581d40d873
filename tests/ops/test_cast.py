"""Casts and transfers: gradients come back in the leaf's dtype, on the leaf's device."""

import numpy as np
import pytest

import minidl
from minidl import nn


@pytest.mark.parametrize("method, dtype", [
    ("half", "f2"), ("float", "f4"), ("double", "f8"), ("int", "i4"), ("long", "i8"), ("bool", "?"),
])
def test_methods_name_their_dtype(method, dtype):
    for origin in ("f2", "f4", "f8", "i8", "?"):
        x = minidl.ones(2, dtype=origin)
        y = getattr(x, method)()
        assert y.dtype == dtype and y.tolist() == [1, 1]
        assert (y is x) == (origin == dtype)


@pytest.mark.parametrize("method", ["half", "float", "double"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_floating_casts_pass_the_gradient_in_the_leaf_s_dtype(method, dtype):
    x = minidl.ones(3, dtype=dtype, requires_grad=True)
    (getattr(x, method)() * 3).sum().backward()
    assert x.grad.dtype == dtype and x.grad.array.tolist() == [3, 3, 3]


def test_casts_to_integers_leave_the_graph():
    x = minidl.tensor([1.7, -1.7], requires_grad=True)
    for y in (x.long(), x.int(), x.bool(), x.to(np.int8)):
        assert not y.requires_grad and y.is_leaf
    assert x.long().tolist() == [1, -1]  # toward zero


def test_to_takes_dtypes_devices_and_tensors_in_any_order():
    x = minidl.ones(2)
    assert x.to("cpu") is x and x.to(minidl.float32) is x
    assert x.to("cpu", np.float64).dtype == np.float64
    assert x.to(dtype="float16").dtype == np.float16 and x.type(np.int64).dtype == np.int64
    assert x.to(minidl.zeros(1, dtype=np.float64)).dtype == np.float64
    copy = x.to(np.float32, copy=True)
    assert copy is not x and not np.shares_memory(copy.array, x.array)
    for flags in ((False,), (True,), (False, False), (True, False)):  # non_blocking, copy
        assert x.to("cpu", np.float32, *flags) is x
        assert x.to(np.float64, *flags).dtype == np.float64
    for non_blocking in (False, True):
        assert x.to(np.float32, non_blocking, True) is not x


@pytest.mark.parametrize("thing", [minidl.ones(2), nn.Linear(2, 1)])
def test_what_is_neither_dtype_nor_device_is_named(thing):
    with pytest.raises(TypeError, match="want a dtype, .* or a device .*; got 'gpu'"):
        thing.to("gpu")


def test_clone_is_recorded():
    x = minidl.ones(2, requires_grad=True)
    y = x.clone()
    assert not np.shares_memory(y.array, x.array)
    y.sum().backward()
    assert x.grad.array.tolist() == [1, 1]
