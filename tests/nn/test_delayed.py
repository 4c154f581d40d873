"""minidl/nn/delayed.py: each loss against the process that it is about, simulated."""

import numpy as np
import pytest

from minidl import Tensor
from minidl.nn import delayed
from minidl.nn import functional as F

P, RATE, N = 0.3, 0.5, 400_000


def stream(window):
    """(labels of what the stream holds, P(y = 1, d > window)) of N records, delays exponential."""
    rng = np.random.default_rng(0)
    y, d = rng.random(N) < P, rng.exponential(1 / RATE, N)
    in_time = y & (d <= window)
    labels = np.concatenate([in_time, np.ones((y & ~in_time).sum())])
    return labels.astype(np.float64), P * np.exp(-RATE * window)


def fitted(loss, start=0.0, n=60, rate=2.0):
    """The logit at which the loss is least, by gradient descent."""
    z = np.array([start])
    for _ in range(n):
        leaf = Tensor(z, requires_grad=True)
        loss(leaf).backward()
        z = z - rate * leaf.grad.numpy()
    return 1 / (1 + np.exp(-z[0]))


def of_counts(labels, loss):
    """A loss of one logit for all records: each label once, weighted by how often it comes."""
    share = labels.mean()

    def both(z):
        return share * loss(z, np.ones(1)) + (1 - share) * loss(z, np.zeros(1))

    return both


def test_weighted_fits_the_truth_where_plain_does_not():
    labels, _ = stream(0.0)
    assert abs(fitted(of_counts(labels, delayed.fake_negative_weighted)) / P - 1) < 0.01
    plain = fitted(of_counts(labels, F.binary_cross_entropy_with_logits))
    assert abs(plain - P / (1 + P)) < 0.003, "0.231 in place of 0.3"
    p = delayed.calibrated(Tensor(np.log([plain / (1 - plain)])))
    assert abs(p[0] / P - 1) < 0.01


@pytest.mark.parametrize("window", [0.0, 0.7, 3.0])
def test_a_window_is_corrected(window):
    labels, p_delayed = stream(window)
    found = fitted(of_counts(labels, lambda z, y: delayed.window_corrected(z, y, p_delayed)))
    assert abs(found / P - 1) < 0.01


def test_a_window_of_nothing_is_the_weighted_loss():
    z, y = np.random.default_rng(1).normal(0, 2, 9), np.arange(9) % 2 * 1.0
    p = 1 / (1 + np.exp(-z))
    assert np.isclose(delayed.window_corrected(Tensor(z), y, p).item(),
                      delayed.fake_negative_weighted(Tensor(z), y).item(), rtol=1e-12)
    weighted = -(y * (1 + p) * np.log(p) + (1 - y) * (1 - p) * (1 + p) * np.log(1 - p)).mean()
    assert np.isclose(delayed.fake_negative_weighted(Tensor(z), y).item(), weighted, rtol=1e-12)


def test_weights_are_constants():
    """d/dz of -[w1 y log p + w0 (1-y) log(1-p)] with w fixed: w1 y (p - 1) + w0 (1-y) p."""
    z, y = np.array([0.3, -1.2]), np.array([1.0, 0.0])
    leaf = Tensor(z, requires_grad=True)
    delayed.fake_negative_weighted(leaf, y).backward()
    p = 1 / (1 + np.exp(-z))
    wanted = y * (1 + p) * (p - 1) + (1 - y) * (1 - p) * (1 + p) * p
    np.testing.assert_allclose(leaf.grad, wanted / 2, rtol=1e-12)


def test_delayed_feedback_is_the_likelihood():
    """Against the density written out, and its gradients against finite differences."""
    rng = np.random.default_rng(2)
    z, r, e, y = rng.normal(0, 2, 6), rng.normal(0, 1, 6), rng.exponential(2, 6), np.arange(6) % 2

    def likelihood(z, r):
        p, rate = 1 / (1 + np.exp(-z)), np.exp(r)
        return -np.log(np.where(y, p * rate * np.exp(-rate * e), 1 - p + p * np.exp(-rate * e)))

    zt, rt = Tensor(z, requires_grad=True), Tensor(r, requires_grad=True)
    loss = delayed.delayed_feedback(zt, rt, y.astype(float), e)
    assert np.isclose(loss.item(), likelihood(z, r).mean(), rtol=1e-10)
    loss.backward()
    h = 1e-5
    for grad, dz, dr in ((zt.grad, h, 0), (rt.grad, 0, h)):
        slope = (likelihood(z + dz, r + dr) - likelihood(z - dz, r - dr)) / (2 * h)
        np.testing.assert_allclose(grad, slope / 6, rtol=1e-6, atol=1e-9)
    far = delayed.delayed_feedback(*(Tensor(np.array([x])) for x in (40.0, 1.0)), np.zeros(1),
                                   np.array([30.0]))
    assert np.isclose(far.item(), 40, rtol=1e-6), "where 1 - p is less than float64 can say"


def test_delayed_feedback_finds_the_share_and_the_rate():
    rng = np.random.default_rng(3)
    n = 40_000
    y, d, age = rng.random(n) < P, rng.exponential(1 / RATE, n), rng.uniform(0, 4, n)
    seen = (y & (d <= age)).astype(float)
    elapsed = np.where(seen, d, age)
    assert seen.mean() < 0.8 * P, "many labels are still to come"
    z, r = np.zeros(1), np.zeros(1)
    for _ in range(150):
        zt, rt = Tensor(z, requires_grad=True), Tensor(r, requires_grad=True)
        delayed.delayed_feedback(zt.expand(n), rt.expand(n), seen, elapsed).backward()
        z, r = z - 3 * zt.grad.numpy(), r - 3 * rt.grad.numpy()
    assert abs(1 / (1 + np.exp(-z[0])) / P - 1) < 0.04 and abs(np.exp(r[0]) / RATE - 1) < 0.06
