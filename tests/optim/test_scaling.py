"""The rate for a larger batch: the two rules, and the climb to it."""

import numpy as np
import pytest

from minidl import optim
from minidl.optim.lr_scheduler import ExponentialLR
from minidl.tensor import Tensor


def test_linear_and_root():
    assert optim.scaled_rate(0.1, 8192) == pytest.approx(3.2)
    assert optim.scaled_rate(0.1, 1024, base_batch=256, rule="sqrt") == pytest.approx(0.2)
    assert optim.scaled_rate(0.1, 128) == pytest.approx(0.05)


def test_wrong_ones_are_named():
    with pytest.raises(ValueError, match="'linear' or 'sqrt'"):
        optim.scaled_rate(0.1, 8, rule="cubic")
    with pytest.raises(ValueError, match="wants batch >= 1"):
        optim.scaled_rate(0.1, 0)


@pytest.mark.parametrize("then, want", [
    (None, [0.25, 0.4375, 0.625, 0.8125, 1, 1, 1]),
    (ExponentialLR, [0.25, 0.4375, 0.625, 0.8125, 1, 0.9, 0.81])])
def test_the_rate_climbs_and_then_follows_the_schedule(then, want):
    optimizer = optim.SGD([Tensor(np.ones(2), requires_grad=True)], lr=1.0)
    after = then and then(optimizer, 0.9)
    scheduler = optim.warmed_up(optimizer, 4, after, start=0.25)
    rates = []
    for _ in want:
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    np.testing.assert_allclose(rates, want, rtol=1e-12)


def test_k_small_steps_and_one_large_go_as_far_where_the_gradient_does_not_turn():
    """The linear rule's premise, exact for a constant gradient."""
    w = Tensor(np.zeros(3), requires_grad=True), Tensor(np.zeros(3), requires_grad=True)
    small, large = (optim.SGD([p], lr=optim.scaled_rate(0.1, b, 8)) for p, b in zip(w, (8, 32)))
    for _ in range(4):
        w[0].grad = np.ones(3)
        small.step()
    w[1].grad = np.ones(3)
    large.step()
    np.testing.assert_allclose(w[0].array, w[1].array, rtol=1e-15)
