"""minidl/ops/extra/composed.py: what it refuses, and ends that rows of samples do not reach."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.nn import functional as F


def test_lerp_reaches_both_ends_exactly():
    start, end = minidl.tensor([0.1, 1e8]), minidl.tensor([0.3, -1.7])
    for weight in (minidl.tensor(1.0), 1.0):
        assert start.lerp(end, weight).tolist() == end.tolist()
    for weight in (minidl.tensor(0.0), 0.0):
        assert start.lerp(end, weight).tolist() == start.tolist()


def test_the_gradient_of_cumprod_is_right_where_there_are_zeros():
    x = minidl.tensor([2.0, 0.0, 3.0], requires_grad=True)
    x.cumprod(0).sum().backward()
    assert x.grad.tolist() == [1 + 0 + 0, 2 + 2 * 3, 0]


def test_a_narrowed_tensor_is_a_view():
    x = minidl.zeros(3, 4)
    x.narrow(1, 1, 2).fill_(1)
    assert x.sum().item() == 6 and x.version == 1


def test_new_tensors_have_the_dtype_of_the_old_one_or_another():
    x = minidl.zeros(2, dtype=np.float64)
    assert x.new_ones(3).dtype == np.float64
    assert x.new_zeros(2, 2, dtype=np.int64).dtype == np.int64
    assert x.is_floating_point() and not minidl.arange(2).is_floating_point()


INTEGERS = np.array([[3, -7, 0, 9], [5, 2, -4, 1]])
PLACES, BOOLS = np.array([[0, 1, 1, 0], [1, 0, 1, 0]]), INTEGERS > 1


@pytest.mark.parametrize("call", [
    lambda m, F, x, at, b: x.cumprod(1), lambda m, F, x, at, b: b.cumprod(0),
    lambda m, F, x, at, b: b.diff(), lambda m, F, x, at, b: b.nan_to_num(),
    lambda m, F, x, at, b: F.hardtanh(x, -2, 4), lambda m, F, x, at, b: F.relu6(x),
    *(lambda m, F, x, at, b, how=how, old=old: x.scatter_reduce(0, at, x * 2, how, include_self=old)
      for how in ("sum", "prod", "mean", "amax", "amin") for old in (True, False)),
    *(lambda m, F, x, at, b, how=how: b.scatter_reduce(0, at, ~b, how, include_self=False)
      for how in ("sum", "prod", "amax", "amin"))])
def test_integers_and_bools_give_pytorchs_values_and_dtypes(call):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    arrays = INTEGERS, PLACES, BOOLS
    got = call(minidl, F, *map(minidl.tensor, arrays))
    want = call(torch, torch.nn.functional, *map(torch.tensor, arrays))
    assert (str(got.dtype), got.tolist()) == (str(want.dtype).removeprefix("torch."), want.tolist())


@pytest.mark.parametrize("call, words", [
    (lambda x: x.mm(x[0]), r"mm: wants mat2 with 2 dimensions, got shape \(4,\)"),
    (lambda x: x.mv(x), r"mv: wants vec with 1 dimension, got shape \(3, 4\)"),
    (lambda x: minidl.tensordot(x, x, 1), "tensordot: dimensions .* must have the same sizes"),
    (lambda x: x.movedim((0, 1), 0), "movedim: wants one destination for each source"),
    (lambda x: x.unflatten(1, (3, -1)), "unflatten: the product of the sizes must be 4"),
    (lambda x: x.narrow(0, 2, 2), "narrow: wanted 2 slices from slice 2 on, .* has only 3"),
    (lambda x: x.unfold(0, 4, 1), r"unfold: wants .* size of at most 3 .* got size=4, step=1"),
    (lambda x: F.pixel_shuffle(x[None], 2), "pixel_shuffle: .* squared, 4; got 1 channels"),
])
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises((ValueError, IndexError), match=words):
        call(minidl.ones(3, 4))


def test_gumbel_softmax_chooses_classes_by_their_probability():
    minidl.manual_seed(0)
    p = np.array([0.1, 0.2, 0.7])
    logits = minidl.tensor(np.log(np.tile(p, (20_000, 1))), requires_grad=True)
    y = F.gumbel_softmax(logits, tau=0.5, hard=True)
    chosen = y.detach().numpy()
    assert set(chosen.round(12).reshape(-1)) == {0, 1} and (chosen.sum(1).round(12) == 1).all()
    # three standard deviations of a mean of 20,000 choices: 3 sqrt(0.25 / 20,000) = 0.0106
    np.testing.assert_allclose(chosen.mean(0), p, atol=0.0106)
    (y[:, 0] ** 2).sum().backward()
    assert np.isfinite(logits.grad.numpy()).all() and logits.grad.abs().max() > 0
    soft = F.gumbel_softmax(logits, dim=0)
    np.testing.assert_allclose(soft.sum(0).detach(), 1, rtol=1e-12)


def test_gumbel_softmax_takes_float16_and_a_generator():
    x = minidl.zeros(3, 4, dtype=minidl.float16)
    a, b = (F.gumbel_softmax(x, generator=minidl.Generator(3)) for _ in range(2))
    assert a.dtype == minidl.float16 and minidl.equal(a, b) and minidl.isfinite(a).all()


def test_dropout2d_drops_whole_channels_and_scales_the_others():
    minidl.manual_seed(0)
    x = minidl.tensor(np.ones((50, 40, 2, 3)), requires_grad=True)
    y = F.dropout2d(x, 0.25)
    kept = y.detach().numpy()
    assert (kept == kept[:, :, :1, :1]).all()
    np.testing.assert_allclose(np.unique(kept), [0, 4 / 3])
    # three standard deviations of 2,000 draws: 3 sqrt(0.1875 / 2,000) = 0.029
    np.testing.assert_allclose((kept[:, :, 0, 0] > 0).mean(), 0.75, atol=0.029)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, kept)
    assert nn.Dropout2d(0.9).eval()(x) is x
    with pytest.raises(ValueError, match=r"dropout2d: wants .* or \(N, C, L\), got shape \(2, 3\)"):
        F.dropout2d(minidl.ones(2, 3))


@pytest.mark.parametrize("call, words", [
    (lambda x: F.unfold(x, 2), r"unfold: the input .*got shape \(2, 3\)"),
    (lambda x: F.unfold(x[None, None], 4), "least the size of a window"),
    (lambda x: F.fold(x, (3, 3), 2), r"\(N, m, 4\) .* divisible by .*, 4;"),
    (lambda x: F.triplet_margin_loss(x, x, x, reduction="no"), "must be 'none', 'sum'"),
    (lambda x: x.scatter_reduce(0, minidl.zeros(2, 3).long(), x, "median"), "one of sum, prod"),
    (lambda x: F.scaled_dot_product_attention(*[minidl.ones(3, 2, 2)] + [minidl.ones(2, 2, 2)] * 2,
                                              enable_gqa=True), "got 3 query heads, 2 key heads")])
def test_windows_heads_and_reductions_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(minidl.ones(2, 3))


def test_a_triplet_loss_is_a_module_too():
    torch = pytest.importorskip("torch", reason="the oracle")
    rows = np.random.default_rng(0).standard_normal((3, 4, 5))
    ours = nn.TripletMarginLoss(margin=0.5, swap=True)(*map(minidl.tensor, rows))
    theirs = torch.nn.TripletMarginLoss(margin=0.5, swap=True)(*map(torch.tensor, rows))
    np.testing.assert_allclose(ours.item(), theirs.item(), rtol=1e-12)
