"""Arithmetic: what the common checks of test_every_op.py do not see."""

import numpy as np
import pytest

import minidl


def test_a_gradient_that_nobody_wants_is_not_computed():
    a, b = minidl.ones(3, requires_grad=True), minidl.ones(3)
    for y in (a * b, a - b, a / b, a**b, a % b):
        gx = y.grad_fn.backward(np.ones(3, np.float32))
        assert gx[0] is not None and gx[1] is None
    assert (b * a).grad_fn.backward(np.ones(3, np.float32))[0] is None


def test_mul_saves_only_what_the_other_s_gradient_needs():
    a, b = minidl.ones(100, requires_grad=True), minidl.ones(100)
    assert [s is None for s in (a * b).grad_fn.saved] == [True, False]
    assert (a * 2.0).grad_fn.saved == (None, 2.0)


def test_power_at_zero_has_torch_s_slopes():
    # 0 ** 0 is 1 for every base, so its slope is 0 and not 0 * infinity
    x = minidl.zeros(2, requires_grad=True)
    (x**0 + x**1 + x**2).sum().backward()
    assert np.array_equal(x.grad, [1, 1])
    exponent = minidl.tensor([0.0, 2.0], requires_grad=True)
    (0.0**exponent).sum().backward()
    assert np.array_equal(exponent.grad, [0, 0])


def test_integers_to_negative_integer_powers_are_refused_by_name():
    with pytest.raises(ValueError, match="^pow: .*negative integer powers"):
        minidl.arange(3) ** -1


def test_rounding_leaves_integers_alone():
    n = minidl.arange(-2, 3)
    for op in (minidl.floor, minidl.ceil, minidl.round):
        assert op(n).dtype == np.int64 and op(n).tolist() == n.tolist()
    assert minidl.round(minidl.tensor([0.5, 1.5, 2.5])).tolist() == [0, 2, 2]  # halves to even


def test_add_and_sub_scale_by_alpha():
    a, b = minidl.arange(3), minidl.ones(3, dtype=np.int64)
    assert minidl.add(a, b, alpha=10).tolist() == [10, 11, 12]
    assert a.sub(b, alpha=2).tolist() == [-2, -1, 0]
