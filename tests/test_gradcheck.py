"""Tests gradcheck: it finds wrong gradients, and names the wrong element."""

import numpy as np
import pytest

import minidl
from minidl import Function
from minidl.gradcheck import STEP, GradcheckError, gradcheck, numeric_gradient

X = np.array([[0.3, -1.2, 2.0], [1.1, 0.0, -0.4]])


class Cube(Function):
    """Computes x^3. The caller gives the derivative, which can be wrong."""

    def forward(self, x, slope):
        self.save(x)
        self.slope = slope
        return x * x * x

    def backward(self, gy):
        (x,) = self.saved
        return gy * self.slope(x)


def cube(slope):
    return lambda x: Cube.apply(x, slope=slope)


def test_a_right_gradient_passes_and_the_error_is_small():
    assert gradcheck(cube(lambda x: 3 * x * x), X) < 1e-9
    assert gradcheck(lambda a, b: (a * b).tanh().sum(0), X, X[:1] + 0.5) < 1e-9


@pytest.mark.parametrize("slope", [
    lambda x: 3 * x, lambda x: 3.00001 * x * x, lambda x: 3 * x * x + 1e-6, lambda x: -3 * x * x,
    lambda x: np.full_like(x, np.nan), lambda x: np.where(x == 2.0, 0, 3 * x * x),
])
def test_a_wrong_gradient_is_found(slope):
    with pytest.raises(GradcheckError, match="input 0, element .* of shape"):
        gradcheck(cube(slope), X)


def test_the_message_names_the_element():
    with pytest.raises(GradcheckError, match=r"element \(0, 2\).*backward says 0, .*1 of 6 "):
        gradcheck(cube(lambda x: np.where(x == 2.0, 0, 3 * x * x)), X)


def test_a_gradient_that_is_missing_is_found():
    with pytest.raises(GradcheckError, match="backward says 0"):
        gradcheck(lambda x: x.detach() * 2 + 0 * x, X)


class RowSoftmax(Function):
    """Softmax with a gradient of zero. This gradient is right only if all elements of gy are
    equal."""

    def forward(self, x):
        y = np.exp(x)
        return y / y.sum(-1, keepdims=True)

    def backward(self, gy):
        return np.zeros_like(gy)


def test_a_zero_softmax_gradient_is_found_because_the_cotangent_is_random():
    with pytest.raises(GradcheckError):
        gradcheck(RowSoftmax.apply, X)
    with pytest.raises(GradcheckError):  # the sum of all outputs is constant
        gradcheck(lambda x: RowSoftmax.apply(x).split(1, -1), X)


def test_wrong_gradient_in_the_second_output_is_found():
    wrong = cube(lambda x: 2 * x)
    with pytest.raises(GradcheckError):
        gradcheck(lambda x: (x * 2, wrong(x)), X)


def test_integer_inputs_are_passed_as_they_are():
    index = minidl.tensor([2, 0, 2])
    gradcheck(lambda x, i: x[:, i], X, index)


def test_numeric_gradient_restores_its_inputs():
    x = minidl.Tensor(X.copy())
    g = numeric_gradient(lambda x: x * x, [x], 0, [np.ones_like(X)])
    # the third derivative of x * x is 0; the rounding error is eps / h = 4e-11 of numbers up to 10
    np.testing.assert_allclose(g, 2 * X, rtol=0, atol=1e-9)
    assert np.array_equal(x.array, X)


def test_the_step_balances_its_two_errors():
    assert 6.0e-6 < STEP < 6.1e-6


def test_inputs_without_elements():
    assert gradcheck(lambda x: x * x, np.zeros((0, 3))) == 0


def test_a_check_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="wants a float64 array .* got float32"):
        gradcheck(cube(lambda x: 0 * x), X.astype(np.float32))
