"""Comparisons and logic equal NumPy's, are bool, and build no graph."""

import numpy as np
import pytest

import minidl

A = np.array([[1.0, np.nan, -np.inf], [0.0, 2.0, np.inf]])
B = np.array([1.0, np.nan, np.inf])


@pytest.mark.parametrize("name, reference", [
    ("eq", np.equal), ("ne", np.not_equal), ("lt", np.less), ("le", np.less_equal),
    ("gt", np.greater), ("ge", np.greater_equal), ("logical_and", np.logical_and),
    ("logical_or", np.logical_or),
])
def test_binary(name, reference):
    a = minidl.Tensor(A, requires_grad=True)
    for other in (B, 1.0):
        got = getattr(a, name)(other)
        assert got.dtype == bool and not got.requires_grad and got.is_leaf
        assert np.array_equal(got.array, reference(A, other))
    with pytest.raises(ValueError, match="do not broadcast"):
        getattr(a, name)(np.ones(2))


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "logical_not"])
def test_unary(name):
    got = getattr(minidl, name)(minidl.Tensor(A))
    assert got.dtype == bool and np.array_equal(got.array, getattr(np, name)(A))


def test_bits_of_integers_and_not_of_floats():
    a, b = minidl.tensor([6, 5]), minidl.tensor([3, 4])
    assert ((a & b).tolist(), (a | b).tolist(), (a ^ b).tolist()) == ([2, 4], [7, 5], [5, 1])
    assert (~a).tolist() == [-7, -6] and minidl.bitwise_not(a == 6).tolist() == [False, True]
    with pytest.raises(TypeError, match="^bitwise_and: "):
        minidl.ones(2) & minidl.ones(2)


def test_comparison_promotes_before_it_compares():
    # 2049 is not a float16: beside int64 it is compared as float16, as in PyTorch
    assert (minidl.tensor([2049]) == minidl.tensor([2048.0], dtype=np.float16)).tolist() == [True]


def test_floor_divide_rounds_down():
    assert (minidl.tensor([7, -7]) // 2).tolist() == [3, -4]
    assert (7 // minidl.tensor([2.0])).tolist() == [3]


def test_any_and_all():
    x = minidl.tensor([[True, False], [True, True]])
    assert x.any().item() is True and x.all().item() is False
    assert x.all(1).tolist() == [False, True] and x.any(dim=0, keepdim=True).shape == (1, 2)
    assert minidl.zeros(0).any().item() is False and minidl.zeros(0).all().item() is True
    assert minidl.all(minidl.tensor([1.5, -2])).item() is True
