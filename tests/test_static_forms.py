"""Tests minidl/static_forms.py: minidl and PyTorch run the same Functions in PyTorch's form."""

import numpy as np
import pytest

import minidl
from minidl.memory.recompute import recompute

X = np.array([[0.5, -1.0, 2.0], [3.0, 0.25, -4.0]], np.float32)


def functions(library, base):
    class ScaledSquare(base):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return scale * x * x

        @staticmethod
        def backward(ctx, gy):
            x, = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return 2 * ctx.scale * x * gy, None

    class Clipped(base):
        """Clamps x. Its gradient is the gradient of the identity, as in a straight-through
        estimator."""
        @staticmethod
        def forward(ctx, x):
            return x.clamp(min=-1, max=1)

        @staticmethod
        def backward(ctx, gy):
            return gy.clone()

    class SumAndDifference(base):
        @staticmethod
        def forward(ctx, a, b):
            return a + b, a - b

        @staticmethod
        def backward(ctx, g_sum, g_difference):
            return g_sum + g_difference, g_sum - g_difference

    return ScaledSquare.apply, Clipped.apply, SumAndDifference.apply


def gradient(library, base):
    square, clipped, both = functions(library, base)
    x = library.tensor(X, requires_grad=True)
    total, difference = both(square(x, 3.0), clipped(x))
    (total * 2 + difference * library.tensor(X)).sum().backward()
    return x.grad


def test_gradients_are_pytorchs():
    torch = pytest.importorskip("torch", reason="the oracle")
    np.testing.assert_array_equal(gradient(minidl, minidl.Function),
                                  gradient(torch, torch.autograd.Function).numpy())


def test_no_graph_is_recorded_inside_and_none_is_kept_under_no_grad():
    seen = []

    class Look(minidl.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((x * 2).requires_grad)
            ctx.save_for_backward(x, None)
            return x * 2

        @staticmethod
        def backward(ctx, gy):
            x, nothing = ctx.saved_tensors
            seen.append(((gy * x).requires_grad, nothing))
            return gy * 2

    x = minidl.tensor(X, requires_grad=True)
    y = Look.apply(x)
    y.sum().backward()
    with minidl.no_grad():
        assert Look.apply(x).grad_fn is None
    assert seen == [False, (False, None), False]
    assert x.grad.tolist() == np.full_like(X, 2).tolist()


def test_what_it_saved_is_watched_and_recomputed():
    square = functions(minidl, minidl.Function)[0]
    x = minidl.tensor(X, requires_grad=True)
    y = square(x, 2.0).sum()
    with minidl.no_grad():
        x[0].zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
    x = minidl.tensor(X, requires_grad=True)
    recompute(lambda x: square(x, 2.0), x).sum().backward()
    np.testing.assert_array_equal(x.grad.array, 4 * X)


def test_a_subclass_may_replace_one_of_the_two():
    class Double(minidl.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gy):
            return 2 * gy

    class Negative(Double):
        @staticmethod
        def backward(ctx, gy):
            return -gy

    x = minidl.tensor(X, requires_grad=True)
    Negative.apply(x).sum().backward()
    np.testing.assert_array_equal(x.grad.array, -np.ones_like(X))


def test_setup_context_is_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match=r"Later: wanted forward\(ctx, .*got a setup_context"):
        class Later(minidl.Function):
            @staticmethod
            def forward(x):
                return x

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass
