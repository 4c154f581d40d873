"""The page and the real ones: the same bits in float32, and an error within the bound."""

import numpy as np
import pytest

from minidl.infer.quantize import in_8_bits, linear_int8, scale_of, weights_of
from minidl.ops.extra import quantize as kernels
from minidl.plain import quantize


def arrays(seed, dtype="f4"):
    """(x (6, 37), w (5, 37)); outputs of different size, a range of x that is not symmetric."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(5, 37)) * np.array([[1], [100], [0.01], [3], [1e4]])
    return (rng.normal(size=(6, 37)) + seed - 1).astype(dtype), w.astype(dtype)


@pytest.mark.parametrize("seed", range(5))
def test_every_part_has_the_bits_of_the_real_one(seed):
    x, w = arrays(seed)
    q_w, scale_w = quantize.weights_of(w)
    for want, got in zip(weights_of(w), (q_w, scale_w), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    q, scale = kernels.quantize(w, per_channel=True)
    np.testing.assert_array_equal(q, q_w)
    np.testing.assert_array_equal(scale, scale_w[:, 0])
    real = scale_of(x.min(), x.max())
    assert quantize.scale_of(x) == real
    np.testing.assert_array_equal(quantize.in_8_bits(x, *quantize.scale_of(x)),
                                  in_8_bits(x, *real))
    np.testing.assert_array_equal(quantize.linear(x, q_w, scale_w),
                                  linear_int8(x, q_w, scale_w, None, None))


def test_the_error_is_what_half_a_scale_allows():
    """|x' w' - x w| <= sum of |x| dw + |w'| dx. dw is half a scale; dx is a whole one, as the zero
    point is rounded, too."""
    for seed in range(5):
        x, w = arrays(seed, "f8")
        q_w, scale_w = quantize.weights_of(w)
        scale_x, zero = quantize.scale_of(x)
        error = abs(quantize.linear(x, q_w, scale_w) - x @ w.T)
        bound = (abs(x).sum(1)[:, None] * scale_w[:, 0] / 2
                 + scale_x * abs(q_w * scale_w).sum(1))
        assert (error <= bound).all() and error.max() > 0
        assert quantize.in_8_bits(np.zeros(1), scale_x, zero) == zero, "0.0 is exact"
