"""Softmax: a distribution along one dimension, whatever the size of the scores."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F


def scores(*shape, dtype=np.float64, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return minidl.Tensor(x, requires_grad=True)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_dimension_named_sums_to_one(dim):
    y = F.softmax(scores(2, 3, 4), dim).numpy()
    # float64: each of at most 4 terms is rounded
    np.testing.assert_allclose(y.sum(axis=dim), 1, rtol=1e-15)
    assert (y > 0).all() and abs(y.sum(axis=(dim + 1) % 3) - 1).max() > 0.1


def test_a_constant_added_to_all_scores_changes_nothing_and_gets_no_gradient():
    x = scores(5, 7)
    y = F.softmax(x, 1)
    # float64: adding 3 rounds the scores, by 4e-16 of numbers up to 6; sums of 7 terms
    np.testing.assert_allclose(F.softmax(x + 3.0, 1).numpy(), y.numpy(), rtol=1e-14)
    y.backward(np.random.default_rng(1).standard_normal((5, 7)))
    np.testing.assert_allclose(x.grad.array.sum(axis=1), 0, atol=1e-15)
    assert abs(x.grad).max() > 0.01


def test_large_scores_neither_overflow_nor_lose_the_small_probability():
    x = minidl.tensor([1000.0, 0.0, -1000.0])
    assert F.softmax(x, 0).tolist() == [1, 0, 0]
    assert F.log_softmax(x, 0).tolist() == [0, -1000, -2000]  # log(softmax) would be -inf


def test_minus_infinity_is_probability_zero_with_no_gradient():
    x = minidl.tensor([0.0, -np.inf, 0.0], requires_grad=True)
    y = F.softmax(x, 0)
    y.backward(np.array([1, 5, 3], np.float32))
    assert y.tolist() == [0.5, 0, 0.5] and x.grad.array.tolist() == [-0.5, 0, 0.5]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,)])
@pytest.mark.parametrize("op", [F.softmax, F.log_softmax])
def test_nothing_becomes_nothing_without_a_warning(op, shape, fused):
    with minidl.use_fused(fused):  # float32: the kernels' own case
        for dim in range(len(shape)):
            x = scores(*shape, dtype=np.float32)
            y = op(x, dim)
            y.backward(np.zeros(shape, np.float32))
            assert y.shape == x.grad.shape == shape


@pytest.mark.parametrize("fused", [False, True])
def test_fp16_sums_in_fp32(fused):
    # 4,096 equal scores: the sum of their e^0 would stop at 2,048 in fp16
    with minidl.use_fused(fused):
        x = scores(4096, 2, dtype=np.float16) * 0
        y = F.softmax(x, 0).numpy()
        assert y.dtype == np.float16 and (y == np.float16(1 / 4096)).all()
        y = F.log_softmax(x, 0).numpy()
        assert y.dtype == np.float16 and (y == np.float16(-np.log(4096))).all()


def test_each_row_has_a_maximum_of_its_own():
    # e^-1000 is 0: a row measured from another row's maximum would be 0 / 0
    x = minidl.tensor([[1000.0, 1000.0], [0.0, 0.0]])
    for fused in (False, True):
        with minidl.use_fused(fused):
            assert F.softmax(x, 1).tolist() == [[0.5, 0.5], [0.5, 0.5]]
            np.testing.assert_allclose(F.log_softmax(x, 1), -np.log(2), rtol=1e-7)  # one rounding


def test_integers_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match="^softmax: wants floating numbers, got int64; pass dtype="):
        F.softmax(minidl.tensor([1, 2]), 0)
    assert F.softmax(minidl.tensor([1, 1]), 0, dtype=np.float32).tolist() == [0.5, 0.5]
