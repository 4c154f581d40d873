"""maximum, clamp, where: who gets the gradient, and what is refused."""

import numpy as np
import pytest

import minidl
from minidl.gradcheck import gradcheck


def test_equal_ones_share_half_and_half():
    for op in (minidl.maximum, minidl.minimum):
        a, b = (minidl.ones(2, requires_grad=True) for _ in range(2))
        op(a, b).sum().backward()
        assert np.array_equal(a.grad, [0.5, 0.5]) and np.array_equal(b.grad, [0.5, 0.5])


def test_clamp_wants_a_bound_that_is_a_number_or_broadcasts():
    x = minidl.ones(2)
    with pytest.raises(TypeError, match="clamp: wants at least one bound, .* got None for each"):
        x.clamp()
    with pytest.raises(TypeError, match="clamp: expected a Tensor, an array or a number, got str"):
        x.clamp(max="1")
    with pytest.raises(ValueError, match=r"clamp: .*\(2,\) and \(3,\)"):
        x.clamp(minidl.zeros(3))
    assert minidl.arange(4).clamp(1, 2).tolist() == [1, 1, 2, 2]
    assert minidl.arange(3).clamp(min=0.5).dtype == np.float32  # as PyTorch promotes


def test_clamp_passes_the_gradient_up_to_its_bounds():
    x = minidl.tensor([0.0, 1.0, 1.5, 2.0, 3.0], requires_grad=True)
    x.clamp(1, 2).sum().backward()
    assert np.array_equal(x.grad, [0, 1, 1, 1, 0])


def test_a_bound_and_a_number_together():
    x = minidl.tensor([0.0, 1.5, 3.0], requires_grad=True)
    low = minidl.tensor([1.0, 1.0, 1.0], requires_grad=True)
    y = x.clamp(low, 2)
    y.sum().backward()
    assert y.tolist() == [1, 1.5, 2]
    assert x.grad.array.tolist() == [0, 1, 0] and low.grad.array.tolist() == [1, 0, 0]
    assert x.clamp(max=np.array([0.5, 2, 2], np.float32)).tolist() == [0, 1.5, 2]
    assert minidl.arange(3).clamp(minidl.tensor([0.5])).dtype == np.float32
    assert minidl.ones(3).clamp(minidl.tensor(0.5, dtype=np.float64)).dtype == np.float32


def test_gradients_of_clamp_where_torch_s_fail():
    x, low, high = np.float64(0.3), np.array([[-1.0, 0.5], [0.7, -2]]), np.float64(0.6)
    gradcheck(minidl.clamp, np.array(x), low, np.array(high))  # 0-d beside more dimensions


def test_clamp_saves_a_mask_for_each_gradient_that_is_wanted():
    x, low = minidl.ones(4, 8, requires_grad=True), minidl.zeros(8, requires_grad=True)
    assert minidl.memory.saved_bytes(x.clamp(0, 1)) == 32
    assert minidl.memory.saved_bytes(x.clamp(low)) == 64
    assert minidl.memory.saved_bytes(x.detach().clamp(low)) == 32


def test_where_wants_a_bool_condition():
    for wrong in (minidl.tensor([1, 0]), minidl.ones(2)):
        with pytest.raises(TypeError, match="where: the condition must be a bool tensor"):
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
