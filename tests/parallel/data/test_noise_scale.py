"""The gradient noise scale: the formula, and what data parallelism measures of a known one."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.parallel import DataParallel, Zero1
from minidl.parallel.data.noise_scale import NoiseScale, estimate
from tests.conftest import ranks


def test_numbers_by_hand():
    g2, s = estimate(5, 3, 1 / 8, 1 / 32)
    np.testing.assert_allclose([g2, s], [7 / 3, 64 / 3], rtol=1e-12)
    with pytest.raises(ValueError, match="fewer samples in the small batch"):
        estimate(5, 3, 1 / 8, 1 / 8)


class Dot(nn.Module):
    """Loss of a sample x: w . x, whose gradient is x: signal and noise are in our hands."""

    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(np.zeros((n, 1)))

    def forward(self, x):
        return x @ self.w


def draws(step, n, dim=6):
    """Gradients of n samples: mean (1, 1, ...), noise of variance 2 in each of dim directions."""
    return 1 + np.random.default_rng(step).normal(size=(n, dim)) * np.sqrt(2)


@pytest.mark.parametrize("lengths", [(4, 4), (1, 2, 5)])
def test_a_known_noise_scale_is_found(lengths):
    """tr(covariance) / |G|^2 = 2 * 300 / 300 = 2, with equal shares and with unequal ones."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])

    def body(t):
        model = DataParallel(Dot(300), t)
        noise = NoiseScale(model, beta=0.98)
        for step in range(40):
            model.zero_grad()
            model(minidl.tensor(draws(step, bounds[-1], 300)[slice(*bounds[t.rank:t.rank + 2])])
                  ).mean().backward()
        model.close()
        return noise.value

    # 40 steps of 8 draws in 300 directions: a deviation of some 2 %
    assert simulate(len(lengths), body)[0] == pytest.approx(2.0, rel=0.06)


@ranks(2, 3, 4, 5, 8)
def test_one_step_is_the_formula(t):
    """Of gradients added up under no_sync, too: a rank's share is then all its samples."""
    x = draws(0, 6 * t.size)
    model = DataParallel(Dot(6), t, bucket_bytes=8)
    noise = NoiseScale(model, beta=0.0)
    mine = x[6 * t.rank:6 * t.rank + 6]
    with model.no_sync():
        (model(minidl.tensor(mine[:3])).mean() / 2).backward()
    (model(minidl.tensor(mine[3:])).mean() / 2).backward()
    shares = [x[6 * k:6 * k + 6].mean(0) for k in range(t.size)]
    want = estimate(np.mean([(g**2).sum() for g in shares]), (x.mean(0) ** 2).sum(), 1 / 6,
                    1 / len(x))
    np.testing.assert_allclose([noise.g2, noise.s], want, rtol=1e-9)
    assert noise.value == pytest.approx(want[1] / want[0], rel=1e-9) or want[0] <= 0
    model.close()


@ranks(2, 3)
def test_a_rank_without_samples_does_not_count(t):
    x = draws(0, 4 * t.size)
    model = DataParallel(Dot(6), t)
    noise = NoiseScale(model, beta=0.0)
    last = t.size - 1
    if t.rank < last or t.size == 2:
        model(minidl.tensor(x[4 * t.rank:4 * t.rank + 4])).mean().backward()
    else:
        model.absent()
    used = t.size if t.size == 2 else last
    shares = [x[4 * k:4 * k + 4].mean(0) for k in range(used)]
    want = estimate(np.mean([(g**2).sum() for g in shares]),
                    (x[:4 * used].mean(0) ** 2).sum(), 1 / 4, 1 / (4 * used))
    np.testing.assert_allclose([noise.g2, noise.s], want, rtol=1e-9)
    model.close()


@ranks(2, 3, 4)
def test_it_costs_one_all_reduce_of_three_numbers(t):
    sent = []
    for measures in (False, True):
        ledger = Ledger(t)
        model = DataParallel(Dot(6), ledger)
        noise = NoiseScale(model) if measures else None
        before = ledger.bytes_sent
        for step in range(2):
            model.zero_grad()
            model(minidl.tensor(draws(step, 4))).mean().backward()
        sent.append(ledger.bytes_sent - before)
        if noise:
            noise.close()
            assert model.reducer.observer is None
        model.close()
    # three float64 in each of two steps
    assert sent[1] - sent[0] == 2 * ring.bytes_sent(3, 8, t.size, t.rank)


@ranks(2)
def test_the_loss_scale_is_taken_out_and_an_overflow_left_out(t):
    model = DataParallel(Dot(6), t)
    plain, scaled = NoiseScale(model, beta=0.0), None
    x = minidl.tensor(draws(t.rank, 4))
    model(x).mean().backward()
    want = plain.g2, plain.s
    plain.close()
    scaled = NoiseScale(model, beta=0.0, loss_scale=lambda: 64.0)
    model.zero_grad()
    (model(x).mean() * 64.0).backward()
    np.testing.assert_allclose([scaled.g2, scaled.s], want, rtol=1e-12)
    model.zero_grad()
    with np.errstate(invalid="ignore"):
        (model(x).mean() * (np.inf if t.rank else 1.0)).backward()
    np.testing.assert_allclose([scaled.g2, scaled.s], want, rtol=1e-12)
    model.close()


def test_averages_are_taken_before_the_quotient_and_travel_in_a_snapshot():
    noise = NoiseScale.__new__(NoiseScale)
    noise.beta, noise.g2, noise.s = 0.5, 0.0, 0.0
    assert math.isnan(noise.value)
    for small, large in ((5, 3), (9, 2)):  # the second has |G|^2 < 0
        noise.add(small, large, 1 / 8, 1 / 32)
    g2, s = zip(*(estimate(*pair, 1 / 8, 1 / 32) for pair in ((5, 3), (9, 2))))
    assert g2[1] < 0
    assert noise.value == pytest.approx((s[0] / 4 + s[1] / 2) / (g2[0] / 4 + g2[1] / 2))
    other = NoiseScale.__new__(NoiseScale)
    other.load_state_dict(noise.state_dict())
    assert other.value == noise.value


@ranks(1, 2)
def test_where_it_cannot_measure_it_says_so(t):
    model = Zero1(nn.Linear(2, 2), t)
    with pytest.raises(TypeError, match="wants a DataParallel model.*Zero1"):
        NoiseScale(model)
    model.close()
    if t.size == 1:
        model = DataParallel(nn.Linear(2, 2), t)
        with pytest.raises(ValueError, match="wanted at least 2 ranks, got 1"):
            NoiseScale(model)
        model.close()
