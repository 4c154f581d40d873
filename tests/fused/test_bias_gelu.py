"""minidl/fused/bias_gelu.py: GELU forward and backward, both forms, with and without a bias."""

import numpy as np
import pytest

import minidl
from minidl import ops
from minidl.fused import bias_gelu as fused
from minidl.fused import dispatch
from minidl.gradcheck import gradcheck
from tests.fused.common import SIZES, backward, normal, tensors

FORMS = ["none", "tanh"]
# float32: P is good to 1.2e-7, and so is its product with x, |x| < 6; float16: one rounding, 2^-11
CLOSE = {
    "f4": dict(rtol=2e-6, atol=1e-6),
    "f2": dict(rtol=1e-3, atol=1e-4),
    "f8": dict(rtol=1e-12, atol=1e-12),
}


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize("n", SIZES)
def test_equals_the_formula_forward_and_backward(n, dtype, approximate):
    x, g = 2 * normal(n, dtype, 1), normal(n, dtype, 2)
    y, (gx,) = backward(fused.gelu, [x], g, approximate=approximate)
    expected, slope = fused.reference(x, approximate)
    assert y.dtype == gx.dtype == np.dtype(dtype)
    np.testing.assert_allclose(y, expected, **CLOSE[dtype])
    np.testing.assert_allclose(gx, g.astype("f8") * slope, **CLOSE[dtype])


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_equals_the_plain_op(dtype, approximate):
    x, g = 3 * normal((33, 65), dtype, 1), normal((33, 65), dtype, 2)
    y, (gx,) = backward(fused.gelu, [x], g, approximate=approximate)
    plain_y, (plain_gx,) = backward(ops.activations.gelu, [x], g, approximate=approximate)
    np.testing.assert_allclose(y, plain_y, **CLOSE[dtype])
    # the plain op rounds the slope to float16, too, before it multiplies: two roundings
    np.testing.assert_allclose(
        gx, plain_gx, rtol=3 * CLOSE[dtype]["rtol"], atol=3 * CLOSE[dtype]["atol"]
    )


@pytest.mark.parametrize("approximate", FORMS)
def test_far_from_zero_it_is_x_or_nothing(approximate):
    x = np.array([-3e38, -100, -12, 12, 100, 3e38, np.inf, np.nan], np.float32)
    y, (gx,) = backward(fused.gelu, [x], np.ones_like(x), approximate=approximate)
    # gelu(-12) is -2e-32, and the formula keeps even that
    np.testing.assert_allclose(y, [0, 0, 0, 12, 100, x[5], np.inf, np.nan], rtol=0, atol=3e-32)
    np.testing.assert_allclose(gx[1:5], [0, 0, 1, 1], rtol=0, atol=1e-29)


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize(
    "shape", [(0, 3), (1, 1), (1, 257), (7, 255), (130, 33), (2, 3, 5), (4, 0)]
)
def test_with_bias_equals_gelu_of_the_sum(shape, dtype, approximate):
    x, b, g = normal(shape, dtype, 1), normal(shape[-1], dtype, 2), normal(shape, dtype, 3)
    y, (gx, gb) = backward(fused.bias_gelu, [x, b], g, approximate=approximate)
    expected, slope = fused.reference(x.astype("f8") + b, approximate)
    expected_gx = g.astype("f8") * slope
    np.testing.assert_allclose(y, expected, **CLOSE[dtype])
    np.testing.assert_allclose(gx, expected_gx, **CLOSE[dtype])
    # a sum of up to 129 products: as many roundings of float32, or one of float16 at the end
    np.testing.assert_allclose(
        gb,
        expected_gx.sum(tuple(range(x.ndim - 1))),
        rtol=CLOSE[dtype]["rtol"] * 4,
        atol=CLOSE[dtype]["atol"] * 30,
    )


@pytest.mark.parametrize("approximate", FORMS)
def test_the_rung_for_a_gpu_gives_the_same(approximate):
    rows, cols = 67, 129
    x, b, g = normal((rows, cols), "f4", 1), normal(cols, "f4", 2), normal((rows, cols), "f4", 3)
    y, gx, partial = np.empty_like(x), np.empty_like(x), np.empty((14, cols), np.float32)
    bias_gelu, bias_gelu_backward = (
        dispatch.kernel(fused.FILE, name, x.dtype, **fused.macros(x.dtype, approximate))
        for name in ("bias_gelu", "bias_gelu_backward")
    )
    # fewer blocks along y than rows: each takes several
    bias_gelu((2, 20), 128, (y, x, b, rows, cols))
    bias_gelu_backward((2, 14), 128, (gx, partial, g, x, b, rows, cols, 5))
    expected, slope = fused.reference(x.astype("f8") + b, approximate)
    np.testing.assert_allclose(y, expected, **CLOSE["f4"])
    np.testing.assert_allclose(gx, g * slope, **CLOSE["f4"])
    np.testing.assert_allclose(partial.sum(0), (g * slope).sum(0), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("approximate", FORMS)
def test_gradients_are_central_differences(approximate):
    x, b = normal((3, 4), "f8", 1), normal(4, "f8", 2)
    gradcheck(lambda x: fused.gelu(x, approximate), x)
    gradcheck(lambda x, b: fused.bias_gelu(x, b, approximate), x, b)


def test_views_and_0d():
    x, b = normal((6, 8), "f4", 1), normal(12, "f4", 2)[::2]
    np.testing.assert_array_equal(fused.gelu(*tensors(x.T)).data, fused.gelu(*tensors(x)).data.T)
    np.testing.assert_array_equal(
        fused.bias_gelu(*tensors(x.T, b)).data, fused.bias_gelu(*tensors(x.T.copy(), b.copy())).data
    )
    assert fused.gelu(*tensors(x[0, 0])).shape == ()


def test_only_x_is_saved():
    (x,) = tensors(normal((8, 8), "f4", 1), requires_grad=True)
    y = fused.gelu(x)
    assert [s is x.data for s in y.grad_fn.saved] == [True]


def test_wrong_arguments_are_named():
    x = minidl.zeros(2, 3)
    with pytest.raises(ValueError, match="gelu: approximate wants 'none' or 'tanh', got 'fast'"):
        fused.gelu(x, "fast")
    with pytest.raises(ValueError, match=r"bias_gelu: .*\(1,\).*\(2, 3\)"):
        fused.bias_gelu(x, minidl.zeros(1))
