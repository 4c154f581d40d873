"""The int8 linear layer: exact sums on every rung, and the error that quantising promised."""

import numpy as np
import pytest

from minidl import cuda
from minidl.ops.extra.int8_linear import MAX_K, by_numpy, int8_linear
from minidl.ops.extra.quantize import quantize


def case(rows, outs, k, per_channel, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(-127, 128, (rows, k), dtype=np.int8)
    w = rng.integers(-127, 128, (outs, k), dtype=np.int8)
    scales = rng.uniform(0.01, 0.1, 1 + outs).astype(np.float32)
    return x, w, scales[:1], scales[1:] if per_channel and outs else scales[1:2].copy()


@pytest.mark.parametrize("rung", [1, 2, 3])
@pytest.mark.parametrize("rows, outs, k", [(1, 1, 1), (3, 5, 7), (16, 16, 64), (17, 33, 65),
                                           (2, 3, 1000)])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_every_rung_equals_numpy(rung, rows, outs, k, per_channel, dtype):
    args = case(rows, outs, k, per_channel)
    bias = np.linspace(-1, 1, outs).astype(np.float32)
    for b in (None, bias):
        y, want = int8_linear(*args, b, dtype=dtype, rung=rung), by_numpy(*args, b)
        assert y.dtype == np.dtype(dtype)
        # the sum is exact; then a product and a sum round in float32, and once to half
        eps = 4 * np.finfo(np.float32).eps + (np.finfo(np.float16).eps if dtype == "f2" else 0)
        np.testing.assert_allclose(y, want, rtol=eps, atol=eps)


def test_the_largest_sum_is_exact():
    ones = np.full((1, MAX_K), 127, np.int8)
    scale = np.ones(1, np.float32)
    y = int8_linear(ones, -ones, scale, scale, rung=1)
    assert y.item() == np.float32(-(127**2) * MAX_K)
    with pytest.raises(ValueError, match="a longer sum may overflow 32 bits"):
        int8_linear(*(np.ones((1, MAX_K + 1), np.int8),) * 2, scale, scale)


def test_a_quantised_layer_is_within_the_error_of_its_rounding():
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((40, 200), (30, 200)))
    (qx, sx), (qw, sw) = quantize(x), quantize(w, per_channel=True)
    y, exact = int8_linear(qx, qw, sx, sw), x.astype("f8") @ w.T.astype("f8")
    # each product errs by at most |x| s_w / 2 + |w| s_x / 2 + s_x s_w / 4
    bound = (np.abs(x).sum(1)[:, None] * sw / 2 + np.abs(w).sum(1) * sx / 2 + 200 * sx * sw / 4)
    assert (np.abs(y - exact) <= bound * 1.0001).all()
    # independent rounding errors add like a random walk: far below the bound
    assert np.abs(y - exact).std() < 0.02 * np.abs(exact).std()


def test_empty_and_wrong_inputs():
    scale = np.ones(1, np.float32)
    assert int8_linear(*case(0, 4, 8, False)).shape == (0, 4)
    assert int8_linear(*case(4, 0, 8, False)[:2], scale, scale).shape == (4, 0)
    with pytest.raises(ValueError, match="x must be int8"):
        int8_linear(np.ones((2, 3)), np.ones((2, 3), np.int8), scale, scale)
    with pytest.raises(ValueError, match=r"got \(1,\) and \(3,\)"):
        int8_linear(np.ones((2, 3), np.int8), np.ones((2, 3), np.int8), scale, np.ones(3, "f4"))


@pytest.mark.parametrize("rung", ["cpu", 1, 2, 3])
def test_no_rung_races_or_strays(rung):
    rows, outs, words = 17, 19, 5
    x, w, sx, sw = case(rows, outs, 4 * words, True)
    y, bias = np.empty((rows, outs), np.float32), np.ones(outs, np.float32)
    if rung in ("cpu", 1):
        grid, block, args = 3, 8, (y, x, w, sx, sw, bias, rows, outs, 4 * words, 1)
    else:
        grid, block = (2, 2), (16, 16)
        args = (y, x.view(np.int32), w.view(np.int32), sx, sw, bias, rows, outs, words, 1)
    file, name = ("cpu/int8_linear.cu", "int8_linear") if rung == "cpu" else (
        "int8_linear.cu", f"int8_linear_v{rung}")
    kernel = cuda.kernel(file, name, defines={"T": "float"})
    report = cuda.check(kernel, grid, block, args)
    assert report.findings == []
    np.testing.assert_allclose(y, by_numpy(x, w, sx, sw, bias), rtol=1e-6, atol=1e-6)
