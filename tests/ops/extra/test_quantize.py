"""minidl/ops/extra/quantize.py."""

import numpy as np
import pytest

from minidl.comm import codec
from minidl.ops.extra import quantize
from tests.kernel_arrays import normal

SHAPES = [(1,), (257,), (3, 255), (64, 33), (2, 3, 5)]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference_and_comes_back_within_half_a_scale(shape, dtype, per_channel):
    x = normal(shape, dtype, 1)
    q, scale = quantize.quantize(x, per_channel)
    expected_q, expected_scale = quantize.by_numpy(x, per_channel)
    np.testing.assert_array_equal(scale, expected_scale)
    np.testing.assert_array_equal(q, expected_q)
    back = quantize.dequantize(q, scale)
    wide = scale.reshape(-1, *[1] * (x.ndim - 1))
    assert (np.abs(back - x) <= 0.5 * wide * (1 + 1e-5)).all()  # a rounding of the quotient
    np.testing.assert_array_equal(back, q * wide)
    half = quantize.dequantize(q, scale, np.float16)
    np.testing.assert_array_equal(half, back.astype(np.float16))


def test_the_largest_is_127_and_channels_do_not_disturb_each_other():
    x = np.array([[1, -2, 0.5], [1000, 500, -1000], [0, 0, 0]], np.float32)
    q, scale = quantize.quantize(x, per_channel=True)
    np.testing.assert_array_equal(q, [[64, -127, 32], [127, 64, -127], [0, 0, 0]])
    assert scale[2] == 0
    assert (quantize.dequantize(q, scale)[2] == 0).all()
    np.testing.assert_array_equal(quantize.quantize(x)[0], [[0, 0, 0], [127, 64, -127], [0, 0, 0]])


def test_ties_go_to_the_even_neighbour():
    x = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    np.testing.assert_array_equal(quantize.quantize(x)[0], [127, 0, 2, 2, 0, -2])


def test_a_quotient_above_127_saturates():
    # subnormal numbers: 190 / 127 of the smallest one rounds to that one, and 190 to int8's end
    x = np.array([190, -190, 50], np.float32) * np.float32(2**-149)
    q, scale = quantize.quantize(x)
    assert scale[0] == np.float32(2**-149) and q.tolist() == [127, -127, 50]


@pytest.mark.parametrize("rung", ["warps", "packs"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("rows, cols", [(1, 1), (5, 31), (3, 257), (4, 528)])
def test_a_warp_per_row_gives_the_same(rows, cols, dtype, rung):
    x = normal((rows, cols), dtype, 1)
    expected_q, expected_scale = quantize.by_numpy(x, per_channel=True)
    top, q, back = np.zeros(rows, np.float32), np.zeros(x.shape, np.int8), np.zeros_like(x)
    scale = expected_scale.astype(np.float32)
    quantize.warps("absmax", dtype, rows, (top, x, rows, cols), rung)
    quantize.warps("quantize", dtype, rows, (q, x, scale, rows, cols, 1), rung)
    quantize.warps("dequantize", dtype, rows, (back, q, scale, rows, cols, 1), rung)
    np.testing.assert_array_equal(top, np.abs(x).max(1))
    np.testing.assert_array_equal(q, expected_q)
    np.testing.assert_array_equal(back, (q * scale[:, None]).astype(dtype))


def test_rows_of_1024_are_the_int8_code_of_comm():
    x = normal((5, codec.BLOCK), "f4", 1) * np.array([1, 1e-20, 1e20, 0, 3], "f4")[:, None]
    x[4] = (np.arange(codec.BLOCK) % 253 - 126.5) * np.float32(0.3)  # in the middle of two codes
    x[4, 0] = 127 * np.float32(0.3)
    q, scale = quantize.quantize(x, per_channel=True)
    payload = codec.encode_int8(x.reshape(-1))
    np.testing.assert_array_equal(payload, np.concatenate([scale.view("u1"), q.view("u1").ravel()]))
    np.testing.assert_array_equal(
        quantize.dequantize(q, scale).reshape(-1), codec.decode_int8(payload, x.size)
    )


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_numbers_that_are_not_finite_are_refused(value):
    x = np.ones((40, 3), np.float32)
    x[39, 1] = value
    with pytest.raises(ValueError, match=r"quantize: an array of shape \(40, 3\) .* not finite"):
        quantize.quantize(x)
    with pytest.raises(ValueError, match="not finite"):
        quantize.quantize(x, per_channel=True)


def test_empty_arrays_and_views():
    q, scale = quantize.quantize(np.zeros((0, 3), np.float32))
    assert q.shape == (0, 3) and scale.shape == (1,)
    x = normal((6, 8), "f4", 1).T
    want, _ = quantize.by_numpy(x.copy(), True)
    np.testing.assert_array_equal(quantize.quantize(x, True)[0], want)


def test_a_scale_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"dequantize: scale .*q of shape \(3, 4\); got \(2,\)"):
        quantize.dequantize(np.zeros((3, 4), np.int8), np.ones(2, np.float32))
