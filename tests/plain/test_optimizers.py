"""The page and the real optimizers: the same weights, norms and learning rates."""

import numpy as np
import pytest

import minidl
from minidl.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from minidl.plain import optimizers

RNG = np.random.default_rng(8)
START = [RNG.normal(size=(3, 4)), RNG.normal(size=5)]
# of very different sizes, and some are exactly 0
GRADIENTS = [[RNG.normal(size=w.shape) * 10.0**(3 - i) for w in START] for i in range(6)]
GRADIENTS[2][1][:2] = 0


def real_weights(make):
    weights = [minidl.tensor(w.copy(), requires_grad=True) for w in START]
    optimizer = make(weights)
    for gradients in GRADIENTS:
        for w, g in zip(weights, gradients):
            w.grad = minidl.tensor(g.copy())
        optimizer.step()
    return [w.detach().numpy() for w in weights]


# Both round the same formula, in float64; Adam's factors are in another order.
def test_momentum_is_the_real_one():
    weights, velocities = [w.copy() for w in START], [np.zeros(w.shape) for w in START]
    for gradients in GRADIENTS:
        for w, g, v in zip(weights, gradients, velocities):
            optimizers.momentum_step(w, g, v, lr=0.03, momentum=0.8)
    wanted = real_weights(lambda w: minidl.optim.SGD(w, lr=0.03, momentum=0.8))
    for w, want in zip(weights, wanted):
        np.testing.assert_allclose(w, want, rtol=1e-13)


@pytest.mark.parametrize("b1, b2", [(0.8, 0.99), (None, None)])
def test_adam_is_the_real_one(b1, b2):
    ours, theirs = ({}, {}) if b1 is None else (dict(b1=b1, b2=b2), dict(betas=(b1, b2)))
    weights = [w.copy() for w in START]
    ms, vs = [np.zeros(w.shape) for w in START], [np.zeros(w.shape) for w in START]
    for t, gradients in enumerate(GRADIENTS, 1):
        for w, g, m, v in zip(weights, gradients, ms, vs):
            optimizers.adam_step(w, g, m, v, t, lr=0.03, **ours)
    wanted = real_weights(lambda w: minidl.optim.Adam(w, lr=0.03, **theirs))
    for w, want in zip(weights, wanted):
        np.testing.assert_allclose(w, want, rtol=1e-12)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_the_real_one(max_norm):
    ours = [g.copy() for g in GRADIENTS[0]]
    theirs = [minidl.tensor(w, requires_grad=True) for w in START]
    for w, g in zip(theirs, GRADIENTS[0]):
        w.grad = minidl.tensor(g.copy())
    norm = optimizers.clip(ours, max_norm)
    assert norm == pytest.approx(minidl.nn.utils.clip_grad_norm_(theirs, max_norm).item(),
                                 rel=1e-13)
    for g, w in zip(ours, theirs):
        np.testing.assert_allclose(g, w.grad.numpy(), rtol=1e-13)
    assert (np.array_equal(ours[0], GRADIENTS[0][0])) == (max_norm > norm)


def test_the_schedule_is_the_real_ones_in_turn():
    warmup, total, lr = 4, 15, 0.7
    sgd = minidl.optim.SGD([minidl.tensor(1.0, requires_grad=True)], lr=lr)
    scheduler = SequentialLR(sgd, [LinearLR(sgd, 1 / warmup, 1.0, total_iters=warmup - 1),
                                   CosineAnnealingLR(sgd, T_max=total - warmup)], [warmup])
    for step in range(total):
        # the real one multiplies what was there: a rounding each step
        assert optimizers.schedule(step, warmup, total, lr) == pytest.approx(
            sgd.param_groups[0]["lr"], rel=1e-12)
        sgd.step()
        scheduler.step()
