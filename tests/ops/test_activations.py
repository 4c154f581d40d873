"""Activations: accuracy of the distribution function, extreme inputs, blocks."""

import math

import numpy as np
import pytest

import minidl
from minidl.ops import gelu, namespace
from minidl.ops.normal import cdf_and_pdf, erf

F = namespace("f")
X = np.concatenate([np.linspace(-7, 7, 4001), [0.46875, 4.0, -4.0, 30.0, -30.0, 1e-300, 0.0]])


def test_erf_is_right_to_the_last_digits():
    # C's erf is within one unit of the last place; Cody's ratios add a few roundings
    wanted = np.array([math.erf(x) for x in X])
    assert (np.abs(erf(X) - wanted) <= 4 * np.spacing(np.abs(wanted))).all()
    assert np.signbit(erf(np.array([-0.0])))[0]
    assert erf(np.array([np.inf, -np.inf])).tolist() == [1, -1]
    assert np.isnan(erf(np.array([np.nan]))[0])


def test_the_float32_distribution_function_is_right_to_four_roundings():
    x = X.astype(np.float32)
    wanted = np.array([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x])
    cdf, pdf = cdf_and_pdf(np, x)
    assert np.abs(cdf - wanted).max() < 4 * 2.0**-24
    wanted = np.exp(-(x.astype(np.float64) ** 2) / 2) / math.sqrt(2 * math.pi)
    assert np.abs(pdf - wanted).max() < 4 * 2.0**-24
    assert cdf.dtype == pdf.dtype == np.float32


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "tanh", "relu", "elu", "softplus",
                                  "leaky_relu"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("fused", [True, False])
def test_extreme_inputs_give_limits_and_no_warning(name, dtype, fused):
    # warnings are errors here: e^1000 must not be formed, or its overflow be meant
    big = np.finfo(dtype).max / 8
    x = minidl.tensor(np.array([-big, -1000, 1000, big], dtype), requires_grad=True)
    with minidl.use_fused(fused):
        y = F[name](x)
        y.sum().backward() if name in ("sigmoid", "tanh") else y.backward(np.ones(4, dtype))
    left, right = {"sigmoid": (0, 1), "tanh": (-1, 1), "elu": (-1, None),
                   "leaky_relu": (None, None)}.get(name, (0, None))
    if left is not None:
        assert y.tolist()[:2] == [left, left] and x.grad.array.tolist()[:2] == [0, 0]
    assert y.tolist()[2:] == ([right] * 2 if right is not None else x.tolist()[2:])
    assert x.grad.array.tolist()[2:] == ([0, 0] if right is not None else [1, 1])


@pytest.mark.parametrize("size", [0, 1, gelu.BLOCK - 1, gelu.BLOCK,
                                  gelu.BLOCK + 1, 2 * gelu.BLOCK + 5])
def test_blocks_cover_every_element_once(size):
    x = minidl.randn(size, generator=minidl.Generator(1), dtype=np.float64, requires_grad=True)
    y = F["silu"](x)
    y.backward(np.ones(size))
    s = 1 / (1 + np.exp(-x.array))
    # float64: the same few operations, each rounded; s (1 - s) cancels where x is large
    np.testing.assert_allclose(y.array, x.array * s, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(x.grad, s * (1 + x.array * (1 - s)), rtol=1e-12, atol=1e-15)


def test_gelu_saves_x_alone():
    x = minidl.randn(1000, requires_grad=True) * 1.0
    y = F["gelu"](x)
    assert y.grad_fn._saved == (x.array,) and minidl.memory.saved_bytes(y) == 4000


def test_gelu_names_its_two_forms():
    with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh'; got 'erf'"):
        F["gelu"](minidl.ones(1), approximate="erf")


def test_relu_has_slope_zero_at_zero():
    x = minidl.zeros(2, requires_grad=True)
    F["relu"](x).sum().backward()
    assert np.array_equal(x.grad, [0, 0])
