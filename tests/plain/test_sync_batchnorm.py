"""The page and the real one, which merges the ranks' own means and variances: another order of the
same sums, so equal to some roundings of float64. And not what each rank does alone."""

import numpy as np

import minidl
from minidl.nn import functional as F
from minidl.parallel.data.sync_batchnorm import SyncBatchNorm
from minidl.plain import sync_batchnorm
from tests.conftest import ranks

C = 3


def arrays(t):
    """Rank r has r+2 samples, of another mean than the other ranks'."""
    rng = np.random.default_rng(t.rank)
    x, g = rng.normal(t.rank, 2, (t.rank + 2, C)), rng.normal(size=(t.rank + 2, C))
    return x, g, np.arange(1.0, C + 1), np.arange(C) - 0.5


@ranks(1, 2, 3, 4, 5, 8)
def test_outputs_and_gradients_are_the_real_ones(t):
    x, g, w, b = arrays(t)
    y, backward = sync_batchnorm.batch_norm(t, x, w, b)
    ours = [y, *backward(g)]

    layer = SyncBatchNorm(C, t=t, losses="sum").double()
    layer.weight.data, layer.bias.data = minidl.tensor(w), minidl.tensor(b)
    inputs = minidl.tensor(x, requires_grad=True)
    out = layer(inputs)
    out.backward(minidl.tensor(g))
    theirs = [out.detach(), inputs.grad, layer.weight.grad, layer.bias.grad]
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-11, atol=1e-13)

    alone = F.batch_norm(minidl.tensor(x), None, None, minidl.tensor(w), minidl.tensor(b), True)
    assert t.size == 1 or not np.allclose(y, alone.numpy(), atol=0.1)
