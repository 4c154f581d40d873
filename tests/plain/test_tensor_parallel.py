"""The page and the real layers: the same bits, and the bytes of two all-reduces."""

import numpy as np

from minidl import random
from minidl.comm import Ledger, ring
from minidl.nn import functional as F
from minidl.parallel.model.tensor import ColumnLinear, RowLinear
from minidl.plain import tensor_parallel
from minidl.tensor import Tensor
from tests.conftest import ranks

N_ROWS, WIDTH, HIDDEN = 3, 5, 11


@ranks(1, 2, 3, 4, 5, 8)
def test_values_gradients_and_bytes_are_the_real_ones(t):
    rng = np.random.default_rng(1)
    x, gy = rng.normal(size=(2, N_ROWS, WIDTH))
    a, b = rng.normal(size=(WIDTH, HIDDEN)), rng.normal(size=(HIDDEN, WIDTH))

    first = ColumnLinear(WIDTH, HIDDEN, bias=False, t=t, generator=random.Generator(0)).double()
    second = RowLinear(HIDDEN, WIDTH, bias=False, t=t, generator=random.Generator(0)).double()
    a_part, b_part = tensor_parallel.columns(t, a), tensor_parallel.rows(t, b)
    first.weight.array[...], second.weight.array[...] = a_part.T, b_part.T
    leaf = Tensor(x.copy(), True)
    want = second(F.relu(first(leaf)))
    want.backward(gy)

    ledger = Ledger(t)
    y, backward = tensor_parallel.mlp(ledger, x, a_part, b_part)
    gx, ga, gb = backward(gy)
    # 1e-13: dot products of at most 11 terms, which BLAS may add in another order for a transpose
    close = dict(rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(y, want.array, **close)
    np.testing.assert_allclose(gx, leaf.grad.array, **close)
    np.testing.assert_allclose(ga, first.weight.grad.array.T, **close)
    np.testing.assert_allclose(gb, second.weight.grad.array.T, **close)
    assert ledger.bytes_sent == 2 * ring.bytes_sent(x.size, 8, t.size, t.rank)


@ranks(1, 2, 3, 4, 5, 8)
def test_the_parts_together_are_one_ranks_network(t):
    """Against the formula on whole matrices, not against the real layers."""
    rng = np.random.default_rng(2)
    x, gy = rng.normal(size=(2, N_ROWS, WIDTH))
    a, b = rng.normal(size=(WIDTH, HIDDEN)), rng.normal(size=(HIDDEN, WIDTH))
    y, backward = tensor_parallel.mlp(t, x, tensor_parallel.columns(t, a),
                                      tensor_parallel.rows(t, b))
    gx = backward(gy)[0]
    h = np.maximum(x @ a, 0)
    np.testing.assert_allclose(y, h @ b, rtol=1e-13, atol=1e-13)  # 11 terms in another order
    np.testing.assert_allclose(gx, (gy @ b.T * (h > 0)) @ a.T, rtol=1e-13, atol=1e-13)
