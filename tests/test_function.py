"""Tests Function: the arguments of forward, its results, and its error messages."""

import numpy as np
import pytest

import minidl
from minidl import Function, Tensor


def leaf(*values, dtype=np.float32):
    return Tensor(np.array(values, dtype), requires_grad=True)


def test_results_are_arrays_also_where_numpy_gives_scalars():
    x = leaf(1, 2)
    for y in (x.sum(), x[0], x.max(), x.sum() * 2, x.mean().exp(), x.prod(), x.argmax(), x.any()):
        assert type(y.array) is np.ndarray and y.shape == ()


def test_needs_tells_forward_what_backward_will_want():
    seen = []

    class Look(Function):
        def forward(self, a, b):
            seen.append(self.needs)
            return a + b

        def backward(self, gy):
            return gy, gy

    a, b = leaf(1), minidl.ones(1)
    Look.apply(a, b)
    Look.apply(b, 2.0)
    with minidl.no_grad():
        Look.apply(a, b)
    assert seen == [[True, False], [False, False], [False, False]]


def test_a_function_may_have_no_inputs():
    class Ones(Function):
        def forward(self):
            return np.ones(2, np.float32)

    assert Ones.apply().tolist() == [1, 1]


def test_a_function_of_two_results_gets_two_gradients():
    class SinCos(Function):
        def forward(self, x):
            self.save(np.sin(x), np.cos(x))
            return self.saved

        def backward(self, g_sin, g_cos):
            sin, cos = self.saved
            return g_sin * cos - g_cos * sin

    x = leaf(0.5, dtype=np.float64)
    sin, cos = SinCos.apply(x)
    assert (sin.slot, cos.slot) == (0, 1) and sin.grad_fn is cos.grad_fn
    (2 * sin + 3 * cos).sum().backward()
    assert x.grad == 2 * np.cos(0.5) - 3 * np.sin(0.5)


def test_a_function_without_a_method_says_which():
    class Half(Function):
        def forward(self, x):
            return x / 2

    with pytest.raises(NotImplementedError, match="Half must define the method backward"):
        Half.apply(leaf(1)).backward()
    with pytest.raises(NotImplementedError, match="Function must define the method forward"):
        Function.apply(leaf(1))


# -- errors


def test_an_error_names_the_op_and_the_shapes():
    a, b = minidl.ones(2, 3), minidl.ones(4)
    with pytest.raises(ValueError, match=r"^add: shapes \(2, 3\) and \(4,\) do not broadcast$"):
        a + b
    with pytest.raises(ValueError, match=r"^maximum: shapes \(4,\) and \(2, 3\) do not broadcast"):
        minidl.maximum(b, a)
    with pytest.raises(ValueError, match=r"reshape.*\(2, 3\)"):
        a.reshape(4)
    with pytest.raises(IndexError, match="sum: dim 2 is out of range.*want -2 to 1"):
        a.sum(2)
    with pytest.raises(IndexError, match=r"getitem: index 5 is out of bounds.*\(2, 3\)"):
        a[5]
    with pytest.raises(ValueError, match="cat.*"):
        minidl.cat([a, b])
    with pytest.raises(TypeError, match="mean: wants a floating dtype, got int64"):
        minidl.arange(3).mean()


def test_an_error_inside_nested_functions_names_the_inner_op_once():
    class Outer(Function):
        def forward(self, x):
            return (Tensor(x) + minidl.ones(4)).array

    with pytest.raises(ValueError) as caught:
        Outer.apply(minidl.ones(3))
    assert str(caught.value) == "add: shapes (3,) and (4,) do not broadcast"


def test_no_error_is_its_own_cause():
    """Once, two errors were their own cause: the error of an op inside another op, and the error of
    a missing attribute."""
    class Outer(Function):
        def forward(self, x):
            return (Tensor(x) @ minidl.ones(4, 5)).array

    class Attribute(Function):
        def forward(self, x):
            return x.nothing

    for kind, error in ((Outer, ValueError), (Attribute, AttributeError)):
        with pytest.raises(error) as raised:
            kind.apply(minidl.ones(2, 3))
        assert raised.value.__cause__ is not raised.value
