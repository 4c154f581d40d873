"""The page and the real engine train the same network: the same losses and weights."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.plain import training
from minidl.plain.autograd import Tensor, grad

RNG = np.random.default_rng(5)
X, TARGETS = RNG.normal(size=(7, 4)), np.array([0, 2, 1, 1, 2, 0, 2])
START = [RNG.normal(size=shape) for shape in [(4, 5), (5,), (5, 3), (3,)]]


def test_the_losses_and_weights_are_the_real_ones():
    weights = [Tensor(w) for w in START]
    w0, b0, w1, b1 = theirs = [minidl.tensor(w.copy(), requires_grad=True) for w in START]
    sgd = minidl.optim.SGD(theirs, lr=0.3)
    first = None
    for _ in range(20):
        loss, weights = training.step(weights, X, TARGETS, lr=0.3)
        scores = (minidl.tensor(X) @ w0 + b0).relu() @ w1 + b1
        want = F.cross_entropy(scores, minidl.tensor(TARGETS))
        sgd.zero_grad()
        want.backward()
        sgd.step()
        first = first or loss
        # in another order, sums of at most 7 terms: 1e-16 of each, 20 times
        assert loss == pytest.approx(want.item(), rel=1e-12)
    for ours, w in zip(weights, theirs):
        np.testing.assert_allclose(ours.array, w.detach().numpy(), rtol=1e-11, atol=1e-13)
    assert loss < first / 4  # it has learned: no gradient was 0


def test_large_scores_give_a_finite_loss():
    scores = np.array([[1000.0, 0.0], [1000.0, 0.0]])
    loss = training.cross_entropy(Tensor(scores), np.array([0, 1]))
    assert loss.array == 500  # 0 and 1000


def test_the_gradient_of_the_scores_is_p_minus_the_wanted():
    scores = Tensor(X)
    g, = grad(training.cross_entropy(scores, np.array([0, 3, 1, 1, 2, 0, 2])), [scores])
    p = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    wanted = np.eye(4)[[0, 3, 1, 1, 2, 0, 2]]
    np.testing.assert_allclose(g.array, (p - wanted) / 7, atol=1e-16)
