"""The page and the real one: the same bits, and the bytes of the real one's formula."""

import math

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import Ledger
from minidl.parallel import DGC, Compressed
from minidl.plain import dgc
from tests.conftest import ranks

SHAPE, N_STEPS, RATE = (20, 15), 5, 0.5


class Given(nn.Module):
    """A model whose gradient is what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(np.zeros(SHAPE, "f4"))

    def forward(self, g):
        return (self.weight * g).sum()


def gradient(t, step):
    """A share of 1/n is a whole number, so that the real one's weight 1/n rounds nothing."""
    rng = np.random.default_rng([t.rank, step])
    return (t.size * rng.integers(-99, 100, SHAPE)).astype("f4")


@ranks(1, 2, 3, 4, 5, 8)
def test_weights_and_residuals_have_the_bits_of_the_real_one(t):
    model = Compressed(Given(), t, DGC(sparsity=0.97, min_size=0))
    optimizer = optim.SGD(model.parameters(), lr=RATE)
    k = math.ceil(math.prod(SHAPE) * 0.03)
    w, u, v = (np.zeros(math.prod(SHAPE), "f4") for _ in range(3))
    bucket, = model.reducer.buckets
    for step in range(N_STEPS):
        ledger = Ledger(t)
        formula = model.method.bytes_sent(t, bucket, step)
        dgc.step(ledger, w, gradient(t, step).reshape(-1), u, v, k, RATE)
        assert ledger.bytes_sent == formula
        optimizer.zero_grad()
        model(minidl.tensor(gradient(t, step)), n_samples=1).backward()
        optimizer.step()
        np.testing.assert_array_equal(w, model.module.weight.detach().numpy().reshape(-1))
        np.testing.assert_array_equal(u, bucket.own["momentum"])
        np.testing.assert_array_equal(v, bucket.own["residual"])
    assert v.any() and 0 < np.count_nonzero(w) < len(w)  # some were sent, some wait
    model.close()
