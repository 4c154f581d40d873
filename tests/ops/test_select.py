"""maximum, clamp, where: who gets the gradient, and what is refused."""

import numpy as np
import pytest

import minidl


def test_equal_ones_share_half_and_half():
    for op in (minidl.maximum, minidl.minimum):
        a, b = (minidl.ones(2, requires_grad=True) for _ in range(2))
        op(a, b).sum().backward()
        assert np.array_equal(a.grad, [0.5, 0.5]) and np.array_equal(b.grad, [0.5, 0.5])


def test_clamp_wants_numbers_and_at_least_one():
    x = minidl.ones(2)
    for bounds in ({}, {"min": minidl.zeros(2)}, {"max": np.zeros(2)}):
        with pytest.raises(TypeError, match="clamp: wants a number"):
            x.clamp(**bounds)
    assert minidl.arange(4).clamp(1, 2).tolist() == [1, 1, 2, 2]
    assert minidl.arange(3).clamp(min=0.5).dtype == np.float32  # as PyTorch promotes


def test_clamp_passes_the_gradient_up_to_its_bounds():
    x = minidl.tensor([0.0, 1.0, 1.5, 2.0, 3.0], requires_grad=True)
    x.clamp(1, 2).sum().backward()
    assert np.array_equal(x.grad, [0, 1, 1, 1, 0])


def test_where_wants_a_bool_condition():
    for wrong in (minidl.tensor([1, 0]), minidl.ones(2)):
        with pytest.raises(TypeError, match="where: the condition wants to be a bool tensor"):
            minidl.where(wrong, 1.0, 2.0)


def test_where_of_two_numbers_is_float32():
    y = minidl.where(minidl.tensor([True, False]), 1.0, 2.0)
    assert y.dtype == np.float32 and y.tolist() == [1, 2]


def test_masked_fill_keeps_the_dtype_and_the_input():
    mask = minidl.tensor([True, False])
    for dtype in (np.float16, np.float32, np.float64):
        x = minidl.ones(2, dtype=dtype)
        y = x.masked_fill(mask, -np.inf)
        assert y.dtype == dtype and y.tolist() == [-np.inf, 1] and x.tolist() == [1, 1]
    assert minidl.arange(2).masked_fill(mask, 7).tolist() == [7, 1]
    with pytest.raises(OverflowError):
        minidl.arange(2).masked_fill(mask, -np.inf)


def test_a_masked_element_gets_no_gradient_even_if_it_is_nan():
    x = minidl.tensor([np.nan, 1.0], requires_grad=True)
    x.masked_fill(minidl.isnan(x), 0.0).sum().backward()
    assert np.array_equal(x.grad, [0, 1])
