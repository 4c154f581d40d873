"""The page and the real one: the same attention, and the bytes of the formula."""

import numpy as np

from minidl.comm import Ledger, all_to_all
from minidl.parallel.model import context
from minidl.plain import ulysses
from minidl.tensor import Tensor
from tests.conftest import ranks

N_TOKENS, WIDTH = 3, 5  # of each rank; each has two heads


def part(t, seed=0):
    return np.random.default_rng([seed, t.rank]).normal(size=(3, N_TOKENS, 2 * t.size, WIDTH))


@ranks(1, 2, 3, 4, 5, 8)
def test_attention_and_its_bytes_are_the_real_ones(t):
    q, k, v = part(t)
    inputs = [Tensor(a.swapaxes(0, 1)[None]) for a in (q, k, v)]  # (1, heads, tokens, width)
    want = context.ulysses_attention(*inputs, t, is_causal=True).array[0].swapaxes(0, 1)
    ledger = Ledger(t)
    # float64, 24 keys: a sum of exponentials and a mean, in another order
    np.testing.assert_allclose(ulysses.attention(ledger, q, k, v), want, rtol=1e-12, atol=1e-13)
    there, _ = context.bytes_sent("ulysses", t.size, 1, N_TOKENS * t.size, WIDTH,
                                  n_heads=2 * t.size, itemsize=8)
    assert ledger.bytes_sent == there


@ranks(1, 2, 3, 4, 5, 8)
def test_all_to_all_is_the_real_one(t):
    x = part(t)[:, 0].swapaxes(0, 1)[:t.size].copy()
    incoming = np.empty_like(x)
    ulysses.all_to_all(t, x, incoming)
    np.testing.assert_array_equal(incoming, all_to_all.all_to_all(t, x))


@ranks(1, 2, 3, 4, 5, 8)
def test_an_exchange_is_undone_and_transposed_by_the_exchange_back(t):
    """The sums over all ranks of x there . y and of x . y back are equal: then the one exchange is
    the other's gradient. The numbers are whole: the sums are exact."""
    rng = np.random.default_rng([1, t.rank])
    x = rng.integers(-9, 9, (N_TOKENS, 2 * t.size, WIDTH)).astype(float)
    y = rng.integers(-9, 9, (N_TOKENS * t.size, 2, WIDTH)).astype(float)
    there, back = ulysses.exchange(t, x, 1, 0), ulysses.exchange(t, y, 0, 1)
    np.testing.assert_array_equal(ulysses.exchange(t, there, 0, 1), x)
    sums = np.array([[(there * y).sum(), (x * back).sum()]] * t.size)
    one, other = all_to_all.all_to_all(t, sums).sum(axis=0)
    assert one == other
