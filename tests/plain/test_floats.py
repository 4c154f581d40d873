"""The page and the real one: the same float16, the same sums of float16; and the bounds of the
page, against exact sums."""

import math

import numpy as np
import pytest

import minidl
from minidl.plain import floats

RNG = np.random.default_rng(9)


def test_to_half_is_the_real_rounding():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    every = np.sort(every[np.isfinite(every)])
    between = np.concatenate([(every[1:] + every[:-1]) / 2, RNG.normal(size=500) * 1e-4])[::7]
    x = np.concatenate([every[::13], between, [0, 65519.9, 65520.0, -1e9, 2.0**-25,
                                                      2.0**-25 * 1.01]])
    with np.errstate(over="ignore"):  # to inf
        want = minidl.tensor(x).half().numpy()
    ours = np.array([floats.to_half(v) for v in x.tolist()])
    np.testing.assert_array_equal(ours, want)


def test_wide_is_how_the_real_one_sums_float16():
    # integers, whose sum float32 holds exactly in any order: the last rounding is the only one
    x = RNG.integers(-10, 20, 3001).astype(np.float16)
    want = minidl.tensor(x).sum().numpy()
    assert want.dtype == np.float16 and floats.wide(x) == want
    assert floats.in_order(x) != want  # and it matters


@pytest.mark.parametrize("dtype, u", [(np.float16, 2.0**-11), (np.float32, 2.0**-24)])
@pytest.mark.parametrize("n", [1, 2, 37, 1000])
def test_the_bounds_of_the_page(dtype, u, n):
    x = RNG.uniform(-0.2, 1, n).astype(dtype)
    exact, size = math.fsum(x.tolist()), math.fsum(abs(x).tolist())
    tree = math.ceil(math.log2(n)) if n > 1 else 0
    for way, bound in [(floats.in_order, n - 1), (floats.pairwise, tree), (floats.kahan, 2)]:
        # (1 + u)^k - 1 is a little above k u; kahan's bound has a term n u^2
        error = abs(float(way(x)) - exact)
        assert error <= bound * u * size * (1 + n * u) + n * u * u * size


def test_numpy_scalars_round_as_the_page_says():
    for a, b in RNG.uniform(0, 2000, (300, 2)).astype(np.float16):
        assert float(a + b) == floats.to_half(float(a) + float(b))


def test_ones_are_swamped_in_order_alone():
    ones = np.ones(4001, np.float16)
    assert floats.in_order(ones) == 2048
    for way in (floats.pairwise, floats.kahan, floats.wide):
        assert way(ones) == 4000  # the even neighbour of 4001
