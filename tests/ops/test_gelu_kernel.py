"""minidl/ops/gelu.py: GELU forward and backward, both forms, and the op that launches it."""

import math

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops import gelu
from tests.kernel_arrays import SIZES, normal, tensors, with_and_without


def reference(x, approximate="none"):
    """(gelu(x), its slope), the formulas in float64 with Python's own erfc."""
    x = np.asarray(x, np.float64)
    if approximate == "tanh":
        u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        p = 0.5 * (1 + np.tanh(u))
        slope = 0.5 / np.cosh(u) ** 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    else:
        p = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), otypes=[float])(x)
        slope = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return x * p, p + x * slope


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
    y, gx = gelu.by_kernel(x, approximate), gelu.by_kernel_backward(x, approximate, g)
    expected, slope = reference(x, approximate)
    assert y.dtype == gx.dtype == np.dtype(dtype)
    np.testing.assert_allclose(y, expected, **CLOSE[dtype])
    np.testing.assert_allclose(gx, g.astype("f8") * slope, **CLOSE[dtype])


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", [(33, 65), (2, 3, 5), (0, 3), (4, 0), ()])
def test_the_op_equals_the_op_without_kernels(shape, dtype, approximate):
    x, g = 3 * normal(shape, dtype, 1), normal(shape, dtype, 2)
    (y, (gx,)), (plain_y, (plain_gx,)) = with_and_without(F.gelu, [x], g, approximate=approximate)
    assert y.dtype == gx.dtype == np.dtype(dtype) and y.shape == gx.shape == shape
    np.testing.assert_allclose(y, plain_y, **CLOSE[dtype])
    # the plain op rounds the slope to float16, too, before it multiplies: two roundings
    np.testing.assert_allclose(
        gx, plain_gx, rtol=3 * CLOSE[dtype]["rtol"], atol=3 * CLOSE[dtype]["atol"]
    )


@pytest.mark.parametrize("approximate", FORMS)
def test_far_from_zero_it_is_x_or_nothing(approximate):
    x = np.array([-3e38, -100, -12, 12, 100, 3e38, np.inf, np.nan], np.float32)
    y, gx = gelu.by_kernel(x, approximate), gelu.by_kernel_backward(x, approximate, np.ones_like(x))
    # gelu(-12) is -2e-32, and the formula keeps even that
    np.testing.assert_allclose(y, [0, 0, 0, 12, 100, x[5], np.inf, np.nan], rtol=0, atol=3e-32)
    np.testing.assert_allclose(gx[1:5], [0, 0, 1, 1], rtol=0, atol=1e-29)


@pytest.mark.parametrize("approximate", FORMS)
def test_gradients_are_central_differences(approximate):
    x, g = normal((3, 4), "f8", 1), normal((3, 4), "f8", 2)
    step = 1e-6
    rise = gelu.by_kernel(x + step, approximate) - gelu.by_kernel(x - step, approximate)
    np.testing.assert_allclose(gelu.by_kernel_backward(x, approximate, g), g * rise / (2 * step),
                               rtol=1e-7, atol=1e-9)


def test_views_and_0d():
    x, g = normal((6, 8), "f4", 1), normal((6, 8), "f4", 2)
    np.testing.assert_array_equal(gelu.by_kernel(x.T), gelu.by_kernel(x).T)
    np.testing.assert_array_equal(gelu.by_kernel(x[::2, ::-3]), gelu.by_kernel(x)[::2, ::-3])
    np.testing.assert_array_equal(gelu.by_kernel_backward(x.T, "none", g.T),
                                  gelu.by_kernel_backward(x, "none", g).T)
    assert gelu.by_kernel(np.asarray(x[0, 0])).shape == ()


def test_only_x_is_saved():
    (x,) = tensors(normal((8, 8), "f4", 1), requires_grad=True)
    y = F.gelu(x)
    assert [s is x.array for s in y.grad_fn.saved] == [True]


def test_wrong_arguments_are_named():
    x = minidl.zeros(2, 3)
    with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh'; got 'fast'"):
        F.gelu(x, "fast")


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", [1, 7, 8, 1031])
def test_a_gpu_takes_packs_of_16_bytes(n, dtype):
    """As the naive kernel: whole, with a tail, and from an address that is no multiple of 16."""
    memory, gy = normal(n + 1, dtype, 1), normal(n, dtype, 2)
    for x in (memory[:n].copy(), memory[1:]):
        y, gx = np.empty_like(gy), np.empty_like(gy)
        gelu.launch(None, "gelu", (y, x), "tanh")
        gelu.launch(None, "gelu_backward", (gx, gy, x), "tanh")
        # float32: the vector loop joins a product and a sum where this one does not, or does
        tol = 2e-6 if dtype == "f4" else 2e-3
        np.testing.assert_allclose(y, gelu.by_kernel(x, "tanh"), rtol=tol, atol=tol)
        np.testing.assert_allclose(gx, gelu.by_kernel_backward(x, "tanh", gy), rtol=tol, atol=tol)


@pytest.mark.parametrize("form", ["tanh", "none"])
def test_the_slope_keeps_its_digits_where_it_is_small(form):
    """P (1 - P) as a difference of numbers near 1 was wrong by 6e-7, seen first on a GPU."""
    x = np.linspace(-8, 8, 1 << 16, dtype=np.float32)
    wanted = gelu.by_numpy(x.astype("d"), form, np.ones(x.shape))
    found = gelu.by_kernel_backward(x, form, np.ones_like(x))
    assert np.abs(found - wanted).max() < 3e-7
