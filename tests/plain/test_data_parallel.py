"""The page and the real one: the same mean gradients and, after some steps, the same weights.

The real one multiplies by n m_r / m, adds, and divides by n; and it sends several parameters in one
vector, so that another rank begins the sum of an element. Each rounds a few times otherwise."""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.plain import data_parallel
from tests.conftest import ranks

N_STEPS = 3


def network():
    minidl.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def batch(t, step):
    """Rank r has r+1 rows."""
    rng = np.random.default_rng([step, t.rank])
    return rng.normal(size=(t.rank + 1, 5)), rng.normal(size=(t.rank + 1, 3))


@ranks(1, 2, 3, 4, 5, 8)
def test_the_weights_are_the_real_ones(t):
    engine = network()
    weights = [p.detach().numpy().copy() for p in engine.parameters()]

    def gradients(weights, x, y):
        for p, w in zip(engine.parameters(), weights):
            p.data = minidl.tensor(w)
        engine.zero_grad()
        F.mse_loss(engine(minidl.tensor(x)), minidl.tensor(y)).backward()
        return [p.grad.numpy() for p in engine.parameters()]

    model = DataParallel(network(), t)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(N_STEPS):
        x, y = batch(t, step)
        data_parallel.step(t, weights, gradients, x, y, lr=0.1)
        optimizer.zero_grad()
        F.mse_loss(model(minidl.tensor(x)), minidl.tensor(y)).backward()
        optimizer.step()
    for w, p in zip(weights, model.parameters()):
        np.testing.assert_allclose(w, p.detach().numpy(), rtol=1e-12, atol=1e-14)
