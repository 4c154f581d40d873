"""The page and the real ones: the same weights. The real ones average all weights in one vector, so
that another rank begins the sum of an element: some roundings of float64 for each round."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.parallel.data.diloco import DiLoCo
from minidl.parallel.data.local_sgd import LocalSGD
from minidl.plain import local_sgd
from tests.conftest import ranks

N_STEPS = 6
OPTIMIZERS = {"sgd": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
              "adamw": lambda params: optim.AdamW(params, lr=0.02)}
PAIRS = {"local SGD": (local_sgd.local_sgd, LocalSGD), "DiLoCo": (local_sgd.diloco, DiLoCo)}


def network():
    minidl.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def backward(model, module, rng):
    module.zero_grad()
    x, y = (minidl.tensor(rng.normal(size=(4, m))) for m in (5, 3))
    F.mse_loss(model(x), y).backward()


def ours(t, name, optimizer, period):
    model = network()
    optimizer = OPTIMIZERS[optimizer](list(model.parameters()))
    rng = np.random.default_rng(t.rank)

    def step(weights):
        for p, w in zip(model.parameters(), weights):
            p.data = minidl.tensor(w)
        backward(model, model, rng)
        optimizer.step()
        for p, w in zip(model.parameters(), weights):
            w[...] = p.detach().numpy()

    weights = [p.detach().numpy().copy() for p in model.parameters()]
    PAIRS[name][0](t, weights, step, N_STEPS, period)
    return weights


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@ranks(1, 2, 3, 4, 5, 8)
def test_the_weights_are_the_real_ones(t, optimizer, name):
    model = network()
    inner = OPTIMIZERS[optimizer](list(model.parameters()))
    wrapped = PAIRS[name][1](model, t, inner, period=3)
    rng = np.random.default_rng(t.rank)
    for _ in range(N_STEPS):
        backward(wrapped, model, rng)
        inner.step()
        wrapped.step()
    wrapped.close()
    weights = ours(t, name, optimizer, period=3)
    for w, p in zip(weights, model.parameters(), strict=True):
        np.testing.assert_allclose(w, p.detach().numpy(), rtol=1e-10, atol=1e-12)
    other = ours(t, name, optimizer, period=2)  # it matters when the ranks meet
    assert name == "local SGD" and t.size == 1 or abs(weights[0] - other[0]).max() > 1e-4
