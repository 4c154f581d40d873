"""The page and the real layer: the same results, with the same tokens dropped."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import Ledger
from minidl.nn import moe
from minidl.parallel.model import experts as real
from minidl.parallel.model.experts import expert_parallel
from minidl.plain import experts
from minidl.tensor import Tensor
from tests.conftest import ranks

WIDTH = 3


def layer(n_experts, k, factor):
    minidl.manual_seed(0)
    made = nn.MoE(WIDTH, n_experts=n_experts, top_k=k, capacity_factor=factor).double()
    made.router.weight.array[...] = np.random.default_rng(0).normal(size=(n_experts, WIDTH))
    return made


def tokens(rank):
    """3 tokens, none, 7, 9, ...; rank 0's like the same expert."""
    n_tokens = 0 if rank == 1 else 2 * rank + 3
    x = np.random.default_rng([1, rank]).normal(size=(n_tokens, WIDTH))
    return x[:1] + 0.01 * x if rank == 0 else x


@pytest.mark.parametrize("k, factor", [(1, 1.25), (1, 0.4), (2, 0.7), (3, 1.25)])
@ranks(1, 2, 3, 4, 5, 8)
def test_results_drops_and_bytes_are_the_real_ones(t, k, factor):
    k = min(k, t.size)
    x = tokens(t.rank)
    model = expert_parallel(layer(t.size, k, factor), t)
    want = model(x).array

    def expert(rows):
        return model.experts[str(t.rank)](Tensor(rows)).array

    router = model.router.weight.array.T
    ledger = Ledger(t)
    y = experts.moe(ledger, x, router, expert, k, factor)
    # one softmax that subtracts the largest score and one that does not: some units of 2^-53
    np.testing.assert_allclose(y, want, rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(y.any(axis=1), want.any(axis=1))  # what is 0 was dropped

    choice, _ = experts.route(x, router, k)
    counts = experts.everywhere(t, moe.of_rounds(choice, t.size))
    plan = moe.plan_of(choice, counts, t.rank, moe.capacity(factor, counts))
    taken = experts.everywhere(t, plan.counts[t.rank])
    of_counts, rows, _ = real.bytes_sent(taken, t.rank, range(t.size + 1), WIDTH, 8, k)
    # the page also says how many rows will come: 8 bytes to each other rank
    assert ledger.bytes_sent == of_counts + 8 * (t.size - 1) + rows


@ranks(1, 2, 3, 4, 5, 8)
def test_the_cases_above_drop_tokens(t):
    """Negative control, with a factor of 0.4 and with one that has room for all."""
    router = layer(t.size, 1, 1).router.weight.array.T
    for factor, drops in ((0.4, True), (t.size, False)):
        y = experts.moe(t, tokens(t.rank), router, np.tanh, 1, factor)
        n_dropped = experts.everywhere(t, np.array([np.sum(~y.any(axis=1))])).sum()
        assert (n_dropped > 0) == drops
