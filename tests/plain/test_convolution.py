"""The page's three forms, their gradients, and the real convolution: the same numbers."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.plain import convolution

SHAPES = [((2, 3, 6, 5), (4, 3, 3, 2)), ((1, 1, 4, 4), (1, 1, 4, 4)), ((3, 2, 2, 7), (5, 2, 1, 1))]
FORMS = [convolution.by_loops, convolution.by_columns, convolution.implicit]


def arrays(shapes):
    rng = np.random.default_rng(6)
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_three_forms_and_the_real_one_are_equal(shapes):
    x, w = arrays(shapes)
    want = F.conv2d(minidl.tensor(x), minidl.tensor(w)).numpy()
    by_kernel = F.conv2d(*(minidl.tensor(a.astype(np.float32)) for a in (x, w))).numpy()
    for form in FORMS:  # float64; sums of at most 18 terms in another order
        np.testing.assert_allclose(form(x, w), want, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(form(x, w), by_kernel, rtol=0, atol=1e-5)  # of numbers up to 12


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_gradients_are_the_real_ones(shapes):
    x, w = arrays(shapes)
    leaves = [minidl.tensor(a, requires_grad=True) for a in (x, w)]
    y = F.conv2d(*leaves)
    gy = np.random.default_rng(7).normal(size=y.shape)
    (y * minidl.tensor(gy)).sum().backward()
    for ours, leaf in zip(convolution.gradients(gy, x, w), leaves):  # as above: at most 40 terms
        np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_im2col_makes_the_bits_of_the_real_one():
    """Both give the same product to BLAS, one image after another."""
    x, w = arrays(SHAPES[0])
    want = F.conv2d(minidl.tensor(x), minidl.tensor(w)).numpy()
    np.testing.assert_array_equal(convolution.by_columns(x, w), want)
