"""minidl/fused/bias_relu.py."""

import numpy as np
import pytest

import minidl
from minidl.fused import bias_relu as fused
from minidl.fused import dispatch
from minidl.gradcheck import gradcheck
from tests.fused.common import backward, normal, tensors


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize(
    "shape", [(0, 3), (1, 1), (1, 257), (7, 255), (129, 33), (2, 3, 5), (4, 0)]
)
def test_equals_relu_of_the_sum(shape, dtype):
    x, b, g = normal(shape, dtype, 1), normal(shape[-1], dtype, 2), normal(shape, dtype, 3)
    y, (gx, gb) = backward(fused.bias_relu, [x, b], g)
    np.testing.assert_array_equal(y, fused.reference(x, b))  # one rounding, the same
    expected = g * (y > 0)
    np.testing.assert_array_equal(gx, expected)
    # a sum of up to 129 numbers near 1, rounded in float32 or once to float16
    np.testing.assert_allclose(
        gb,
        expected.astype("f8").sum(tuple(range(x.ndim - 1))),
        **{"f4": dict(rtol=1e-5, atol=1e-5), "f2": dict(rtol=1e-3), "f8": dict(rtol=1e-11)}[dtype],
    )


def test_the_rung_for_a_gpu_gives_the_same():
    rows, cols = 67, 129
    x, b, g = normal((rows, cols), "f4", 1), normal(cols, "f4", 2), normal((rows, cols), "f4", 3)
    y, gx, partial = np.empty_like(x), np.empty_like(x), np.empty((14, cols), np.float32)
    bias_relu, bias_relu_backward = (
        dispatch.kernel(fused.FILE, name, x.dtype, **fused.macros(x.dtype))
        for name in ("bias_relu", "bias_relu_backward")
    )
    bias_relu((2, 20), 128, (y, x, b, rows, cols))
    bias_relu_backward((2, 14), 128, (gx, partial, g, y, rows, cols, 5))
    np.testing.assert_array_equal(y, fused.reference(x, b))
    np.testing.assert_array_equal(gx, g * (y > 0))
    np.testing.assert_allclose(partial.sum(0), gx.sum(0), rtol=1e-5, atol=1e-5)


def test_gradients_are_central_differences():
    x = normal((5, 4), "f8", 1)
    x[np.abs(x) < 0.1] = 0.5
    gradcheck(fused.bias_relu, x, np.zeros(4))


def test_nan_stays_and_zero_has_no_slope():
    y, (gx, _) = backward(
        fused.bias_relu,
        [np.array([[np.nan, 0, -1, 2]], np.float32), np.zeros(4, np.float32)],
        np.ones((1, 4), np.float32),
    )
    np.testing.assert_array_equal(y, [[np.nan, 0, 0, 2]])
    np.testing.assert_array_equal(gx, [[0, 0, 0, 1]])


def test_views_are_read_in_their_own_order():
    x, b = normal((6, 8), "f4", 1).T, normal(12, "f4", 2)[::2]
    np.testing.assert_array_equal(fused.bias_relu(*tensors(x, b)).data, fused.reference(x, b))


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"bias_relu: .*\(1,\).*\(2, 3\)"):
        fused.bias_relu(minidl.zeros(2, 3), minidl.zeros(1))
