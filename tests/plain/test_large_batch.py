"""The page and the real ones: the same weights, to the rounding of a length: the real ones add the
squares in another order, and correct m and v by factors before they divide."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.optim.lr_scheduler import LinearLR
from minidl.plain import large_batch

SHAPES = [(4, 5), (7,), (1, 3, 2)]
N_STEPS = 5


def start():
    rng = np.random.default_rng(4)
    return [rng.normal(size=shape) for shape in SHAPES]


def gradients(step):
    """Of very different lengths, so that one common rate would not do."""
    rng = np.random.default_rng([5, step])
    return [rng.normal(size=shape) * 10.0**(3 * i) for i, shape in enumerate(SHAPES)]


def real(make):
    params = [nn.Parameter(minidl.tensor(w)) for w in start()]
    optimizer = make(params)
    for step in range(N_STEPS):
        for p, g in zip(params, gradients(step)):
            p.grad = minidl.tensor(g)
        optimizer.step()
    return [p.detach().numpy() for p in params]


def test_lars():
    weights, velocities = start(), [np.zeros(shape) for shape in SHAPES]
    for step in range(N_STEPS):
        for w, g, v in zip(weights, gradients(step), velocities):
            large_batch.lars(w, g, v, rate=20)
    for w, want in zip(weights, real(lambda params: optim.LARS(params, lr=20)), strict=True):
        np.testing.assert_allclose(w, want, rtol=1e-12)


def test_lamb():
    weights = start()
    m, v = ([np.zeros(shape) for shape in SHAPES] for _ in range(2))
    for step in range(N_STEPS):
        for w, g, m_of, v_of in zip(weights, gradients(step), m, v):
            large_batch.lamb(w, g, m_of, v_of, step + 1, rate=0.1)
    for w, want in zip(weights, real(lambda params: optim.LAMB(params, lr=0.1)), strict=True):
        np.testing.assert_allclose(w, want, rtol=1e-12)


@pytest.mark.parametrize("n_warmup", [1, 4])
def test_the_rates_are_those_of_a_linear_schedule(n_warmup):
    optimizer = optim.SGD([nn.Parameter(minidl.tensor(np.zeros(1)))], lr=0.8)
    schedule = LinearLR(optimizer, start_factor=1 / 8, total_iters=n_warmup)
    for step in range(2 * n_warmup):
        rate = large_batch.learning_rate(step, 0.1, 8 * 32, 32, n_warmup)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-14)
        optimizer.step()
        schedule.step()
