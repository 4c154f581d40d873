"""Composed ops that draw random numbers, and what composed ops refuse."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.nn import functional as F


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
    with pytest.raises(ValueError, match=r"dropout2d: wants \(N, C, H, W\), got shape \(2, 3\)"):
        F.dropout2d(minidl.ones(2, 3))


@pytest.mark.parametrize("call, words", [
    (lambda x: F.unfold(x, 2), r"unfold: an input of shape \(2, 3\)"),
    (lambda x: F.unfold(x[None, None], 4), "not smaller than a window"),
    (lambda x: F.fold(x, (3, 3), 2), "want columns of a multiple of 4 elements, 4 of them"),
    (lambda x: F.triplet_margin_loss(x, x, x, reduction="no"), "reduction is none, sum or mean"),
    (lambda x: x.scatter_reduce(0, minidl.zeros(2, 3).long(), x, "prod"), "sum, mean, amax or"),
    (lambda x: F.scaled_dot_product_attention(*[minidl.ones(3, 2, 2)] + [minidl.ones(2, 2, 2)] * 2,
                                              enable_gqa=True), "3 heads of the query are no")])
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(minidl.ones(2, 3))


def test_a_triplet_loss_is_a_module_too():
    torch = pytest.importorskip("torch", reason="the oracle")
    rows = np.random.default_rng(0).standard_normal((3, 4, 5))
    ours = nn.TripletMarginLoss(margin=0.5, swap=True)(*map(minidl.tensor, rows))
    theirs = torch.nn.TripletMarginLoss(margin=0.5, swap=True)(*map(torch.tensor, rows))
    np.testing.assert_allclose(ours.item(), theirs.item(), rtol=1e-12)
