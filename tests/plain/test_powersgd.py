"""The page and the real one: the same products, and the bytes of the real one's formula.

The real one weights by 1/n where the page divides by n, and a last bit of Q is amplified by the
division in QR; float64 leaves 1e-10 for five steps."""

import numpy as np

import minidl
from minidl import nn
from minidl.comm import Ledger
from minidl.parallel import Compressed, PowerSGD
from minidl.plain import powersgd
from tests.conftest import ranks

SHAPE, N_STEPS, RANK = (9, 14), 5, 2


class Given(nn.Module):
    """A model whose gradient is what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(np.zeros(SHAPE))

    def forward(self, g):
        return (self.weight * g).sum()


@ranks(1, 2, 3, 4, 5, 8)
def test_means_and_what_is_owed_are_the_real_ones(t):
    model = Compressed(Given(), t, PowerSGD(rank=RANK))
    weight, (bucket,) = model.module.weight, model.reducer.buckets
    q, owed = bucket.common["q"][weight].copy(), np.zeros(SHAPE)
    rng = np.random.default_rng(t.rank)
    for step in range(N_STEPS):
        gradient, ledger = rng.normal(t.rank, 1, SHAPE), Ledger(t)
        mean, q = powersgd.mean_gradient(ledger, gradient, q, owed)
        assert ledger.bytes_sent == model.method.bytes_sent(t, bucket, step)
        model.zero_grad()
        model(minidl.tensor(gradient), n_samples=1).backward()
        np.testing.assert_allclose(mean, weight.grad.numpy(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(owed, bucket.views_of("residual")[0], rtol=1e-10, atol=1e-10)
    assert np.linalg.matrix_rank(mean) == RANK and abs(owed).max() > 0.1
    model.close()
