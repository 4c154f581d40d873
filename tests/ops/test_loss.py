"""Losses: what is ignored, what overflows, and wrong targets."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops.loss import sum_of_squares

RNG = np.random.default_rng(8)


def logits(*shape, dtype=np.float64):
    return minidl.Tensor(RNG.standard_normal(shape).astype(dtype), requires_grad=True)


def test_mean_divides_by_the_rows_that_count():
    x, target = logits(4, 3), np.array([1, -100, 0, -100])
    some = minidl.Tensor(x.numpy()[[0, 2]])
    got = F.cross_entropy(x, target)
    # float64: the same two losses, beside zeros
    np.testing.assert_allclose(got.item(), F.cross_entropy(some, target[[0, 2]]).item(), rtol=1e-15)
    got.backward()
    assert not x.grad[[1, 3]].any() and x.grad[[0, 2]].any()


def test_an_ignored_row_has_no_part_in_a_smoothed_loss():
    x, target = logits(4, 3), np.array([1, -100, 0, -100])
    losses = F.cross_entropy(x, target, label_smoothing=0.1, reduction="none")
    losses.sum().backward()
    assert (losses.numpy() > 0).tolist() == [True, False, True, False]
    assert x.grad.array.any(axis=1).tolist() == [True, False, True, False]


def test_all_ignored_is_nan_with_a_zero_gradient():
    x = logits(2, 3)
    y = F.cross_entropy(x, np.array([-100, -100]))
    y.backward()
    assert np.isnan(y.item()) and not x.grad.array.any()


@pytest.mark.parametrize("fused", [True, False])
def test_large_logits_do_not_overflow(fused):
    x = minidl.Tensor(np.array([[3e4, 0, -3e4]], np.float32), requires_grad=True)
    with minidl.use_fused(fused):
        F.cross_entropy(x, np.array([1]), reduction="sum").backward()
    np.testing.assert_array_equal(x.grad, [[1, -1, 0]])


@pytest.mark.parametrize("fused", [True, False])
def test_fp16_is_summed_in_fp32(fused):
    x = minidl.Tensor(np.zeros((4096, 2), np.float16), requires_grad=True)
    with minidl.use_fused(fused):
        y = F.cross_entropy(x, np.zeros(4096, int))
        y.backward()
    assert y.dtype == np.float16 and abs(y.item() - np.log(2)) < 2**-11
    assert F.mse_loss(x, x + 1).item() == 1  # an fp16 sum of ones stops at 2048


def test_the_logits_the_targets_and_a_number_a_row_are_saved():
    n, c = 100, 50
    x, target = logits(n, c) * 1.0, np.zeros(n, int)
    saved = F.cross_entropy(x, target).grad_fn.saved
    assert saved[0] is x.array and np.shares_memory(saved[1], target)
    assert saved[2].shape == (n,) and saved[3] is None


def test_backward_twice_with_retain_graph_adds_the_same_again():
    x = logits(3, 4)
    y = F.cross_entropy(x, np.array([0, 3, 1]), label_smoothing=0.1)
    y.backward(retain_graph=True)
    once = x.grad.array.copy()
    y.backward()
    np.testing.assert_array_equal(x.grad, 2 * once)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_wrong_targets_are_named(loss):
    with pytest.raises(IndexError, match=r"target 3 is no class. The input \(2, 3\) has .* 0 to 2"):
        loss(logits(2, 3), np.array([3, 0]))
    with pytest.raises(IndexError, match="target -1 is no class"):
        loss(logits(2, 3), np.array([0, -1]))
    with pytest.raises(ValueError, match=r"input \(2, 3\) of float64, target \(3,\) of int64"):
        loss(logits(2, 3), np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="must be 'none', 'mean' or 'sum'; got 'average'"):
        loss(logits(2, 3), np.array([0, 1]), reduction="average")
    with pytest.raises(ValueError, match=r"weight must have the shape \(3,\).*got \(2,\)"):
        loss(logits(2, 3), np.array([0, 1]), np.ones(2))


def test_unequal_shapes_are_refused():
    for loss in (F.mse_loss, F.l1_loss, F.binary_cross_entropy_with_logits):
        with pytest.raises(ValueError, match=r"input \(3, 1\), target \(3,\); want equal shapes"):
            loss(logits(3, 1), np.ones(3))
    with pytest.raises(ValueError, match="a target of probabilities must have"):
        F.cross_entropy(logits(3, 2), np.ones(3))
    with pytest.raises(ValueError, match="label_smoothing .* got 2"):
        F.cross_entropy(logits(3, 2), np.zeros(3, int), label_smoothing=2)


def test_binary_cross_entropy_of_a_wrong_certainty_is_100_and_of_no_probability_an_error():
    p = minidl.tensor([0.0, 1.0, 1.0, 0.25])
    loss = F.binary_cross_entropy(p, minidl.tensor([1.0, 0.0, 1.0, 0.0]), reduction="none")
    assert loss.tolist()[:3] == [100, 100, 0]
    np.testing.assert_allclose(loss.tolist()[3], -np.log(0.75), rtol=2e-7)  # float32, two roundings
    for wrong in (-0.1, 1.5, np.nan):
        with pytest.raises(ValueError, match="wants probabilities from 0 to 1"):
            F.binary_cross_entropy(minidl.tensor([0.5, wrong]), minidl.tensor([1.0, 1.0]))


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 300_001])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_squares_are_summed_without_an_array_of_them(n, dtype):
    """Blocks and what is left over, as exact as NumPy's pairwise sum: of 300,000 equal squares the
    last digits of a plain sum in float32 would be lost."""
    d = np.full(n, 1 / 3, dtype)
    got = sum_of_squares(d)
    assert got.dtype == dtype
    want = np.square(d.astype(np.float64)).sum()
    np.testing.assert_allclose(got, want, rtol=5e-7 if dtype == "f4" else 1e-13)
