"""Codecs: payloads of exactly the stated size, errors within the stated bound."""

import numpy as np
import pytest

from minidl.comm import codec

LENGTHS = [0, 1, 1023, 1024, 1025, 4099]
CODECS = {"fp16": codec.FP16, "int8": codec.INT8, "one bit": codec.ONE_BIT,
          "one bit, mean": codec.ONE_BIT_MEAN}


def data(length, dtype="f4"):
    """Blocks of very different size; within one, values from 1e-3 of the largest to all of it."""
    rng = np.random.default_rng(length)
    x = rng.uniform(-1, 1, length) * 10.0 ** rng.uniform(-3, 0, length)
    return (x * 10.0 ** (np.arange(length) // 1024)).astype(dtype)


def int8_bound(x):
    """Half a scale of each element's block."""
    starts = range(0, len(x), codec.BLOCK)
    parts = [x[i : i + codec.BLOCK] for i in starts]
    return np.concatenate([np.full(len(p), np.abs(p).max() / 254) for p in parts] or [x])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CODECS)
def test_the_payload_has_exactly_the_stated_bytes(name, length):
    c = CODECS[name]
    expected = {"fp16": 2 * length, "int8": length + 4 * ((length + 1023) // 1024)}.get(
        name, 4 * (length > 0) + (length + 7) // 8)
    for dtype in ("f2", "f4", "f8"):
        payload = c.encode(data(length, dtype))
        assert payload.dtype == np.uint8 and payload.ndim == 1
        assert payload.nbytes == c.n_bytes(length) == expected
        decoded = c.decode(payload, length)
        assert decoded.dtype == np.float32 and decoded.shape == (length,)


@pytest.mark.parametrize("length", LENGTHS)
def test_fp16_rounds_to_11_bits(length):
    x = data(length)
    error = np.abs(codec.decode_fp16(codec.encode_fp16(x), length).astype("f8") - x)
    assert (error <= np.abs(x) / 2048 + 2.0**-25).all()  # 2**-25: half a subnormal step
    assert length < 100 or (error > np.abs(x) / 5000).any()  # the bound is not loose


@pytest.mark.parametrize("length", LENGTHS)
def test_int8_errs_by_at_most_half_a_scale(length):
    x = data(length)
    error = np.abs(codec.decode_int8(codec.encode_int8(x), length).astype("f8") - x)
    # the scale, the division and the product round in float32: 3 times 2**-24 of 127 scales
    assert (error <= int8_bound(x) * (1 + 2 * 127 * 3 * 2.0**-24)).all()
    assert length < 100 or (error > 0.9 * int8_bound(x)).any()


def test_int8_keeps_the_largest_element_of_a_block_and_both_signs():
    x = np.array([-3.0, 1.5, 3.0, 0.0], "f4")
    decoded = codec.decode_int8(codec.encode_int8(x), 4)
    # 1.5 is 63.5 scales, rounded to the even 64
    np.testing.assert_allclose(decoded, [-3, 64 * 3 / 127, 3, 0], rtol=2**-22)


def test_a_large_value_costs_only_its_own_block():
    x = np.ones(3 * 1024, "f4")
    x[1500] = 1e6
    decoded = codec.decode_int8(codec.encode_int8(x), len(x))
    assert (decoded[:1024] == 1).all() and (decoded[2048:] == 1).all()
    assert (decoded[1024:1500] == 0).all()  # 1 is less than half of 1e6 / 127


def test_the_scale_comes_from_the_end_of_the_range_and_not_from_its_spread():
    x = np.linspace(5, 6, 100, dtype="f4")  # symmetric: zero is always 0, whatever the mean
    q = codec.encode_int8(x)[4:].view(np.int8)
    assert q.min() == 106 and q.max() == 127


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-40, 1.4e-36, 1.6e-36, 1e-30])
def test_int8_of_zeros_and_of_numbers_whose_scale_would_be_subnormal(tiny):
    x = np.array([tiny, -tiny, tiny / 2, 0], "f4")
    decoded = codec.decode_int8(codec.encode_int8(x), 4)
    limit = 127 * 2.0**-126  # 1.5e-36: up to it the block becomes zeros
    assert (np.abs(decoded - x) <= (tiny / 253 if tiny > limit else limit)).all()
    assert (decoded[0] == 0) == (tiny < limit)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_visible_and_in_its_block(bad):
    x = np.ones(2048, "f4")
    x[1030] = bad
    decoded = codec.decode_int8(codec.encode_int8(x), 2048)
    assert (decoded[:1024] == 1).all() and np.isnan(decoded[1024:]).all()
    decoded = codec.decode_fp16(codec.encode_fp16(x), 2048)
    np.testing.assert_array_equal(decoded, x)


def test_fp16_beyond_its_range_is_inf_and_numpy_says_so():
    with pytest.warns(RuntimeWarning, match="overflow"):
        payload = codec.encode_fp16(np.array([70000, -70000], "f4"))
    assert codec.decode_fp16(payload, 2).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_payload_may_lie_anywhere_in_a_longer_one(name, offset):
    c, x = CODECS[name], data(1500)
    payload = c.encode(x)
    longer = np.zeros(len(payload) + 10, np.uint8)
    longer[offset : offset + len(payload)] = payload
    moved = longer[offset : offset + len(payload)]
    assert (c.decode(moved, 1500) == c.decode(payload, 1500)).all()


@pytest.mark.parametrize("name", CODECS)
def test_coding_again_changes_nothing(name):
    c, x = CODECS[name], data(3000)
    once = c.decode(c.encode(x), 3000)
    twice = c.decode(c.encode(once), 3000)
    # int8: 127 scales divided by 127 may round to a neighbour of the scale
    np.testing.assert_allclose(twice, once, rtol=0 if name == "fp16" else 2**-22)


@pytest.mark.parametrize("k", [0, 1, 7])
def test_pairs_are_exact_and_8_bytes_each(k):
    indices = np.array([5, 0, 2**31 - 1, 5, 3, 2, 1])[:k]
    values = np.linspace(-1e30, 1e-30, 7)[:k]
    payload = codec.encode_pairs(indices, values)
    assert payload.dtype == np.uint8 and payload.nbytes == 8 * k
    where, what = codec.decode_pairs(payload)
    assert where.tolist() == indices.tolist() and (what == values.astype("f4")).all()


@pytest.mark.parametrize(
    "indices, values, message",
    [
        ([1, 2], [1.0], "two 1-d arrays of the same length"),
        ([[1]], [[1.0]], "two 1-d arrays of the same length"),
        ([1.5], [1.0], "and integer indices"),
        ([-1, 4], [1.0, 2.0], "indices from 0 to 2147483647"),
        ([2**31], [1.0], "indices from 0 to 2147483647"),
    ],
)
def test_pairs_that_cannot_be_carried_are_an_error(indices, values, message):
    with pytest.raises(ValueError, match=message):
        codec.encode_pairs(np.array(indices), np.array(values))


def test_golden_values_of_one_bit():
    # 1-bit Adam's two roundings of one chunk on two ranks, by hand
    x0, x1 = np.array([1, -3], "f4"), np.array([2, 0.5], "f4")
    one = [codec.ONE_BIT.decode(codec.ONE_BIT.encode(x), 2) for x in (x0, x1)]
    np.testing.assert_allclose(one, [[5**0.5, -(5**0.5)], [1.457738, 1.457738]], rtol=1e-6)
    mean = sum(one) / 2
    np.testing.assert_allclose(mean, [1.846903, -0.389165], rtol=2e-6)
    np.testing.assert_allclose(codec.ONE_BIT.decode(codec.ONE_BIT.encode(mean), 2),
                               [1.334635, -1.334635], rtol=1e-6)
    # EF-SGD's: of lr g = (0.1, -0.3) the mean of |x| is sent
    x = np.array([0.1, -0.3], "f4")
    sent = codec.ONE_BIT_MEAN.decode(codec.ONE_BIT_MEAN.encode(x), 2)
    np.testing.assert_allclose(sent, [0.2, -0.2], rtol=1e-6)
    zeros = np.array([0.0, 4.0], "f4")  # the sign of 0 is +
    assert (codec.ONE_BIT_MEAN.decode(codec.ONE_BIT_MEAN.encode(zeros), 2) == 2).all()


def test_the_mean_as_scale_never_adds_to_the_norm_and_the_root_may():
    sparse = np.zeros(100, "f4")
    sparse[7] = 1
    error = {c: np.linalg.norm(sparse - c.decode(c.encode(sparse), 100))
             for c in (codec.ONE_BIT, codec.ONE_BIT_MEAN)}
    assert error[codec.ONE_BIT_MEAN] < 1 < error[codec.ONE_BIT]
