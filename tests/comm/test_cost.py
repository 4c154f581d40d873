"""The cost formulas equal the simulator's clock and the ledger's counts, where they promise to."""

import numpy as np
import pytest

from minidl.comm import cost, naive, ring, simulate, tree
from minidl.comm.ledger import Ledger

# Powers of two, so that sums of them are exact in floating point.
ALPHA, BETA = 2.0**-10, 2.0**-20


def measured(n, fn, n_elems=240):
    """(messages and bytes of the busiest rank, the last rank's clock) of fn(t, x)."""

    def body(t):
        t = Ledger(t)
        fn(t, np.ones(n_elems, "f4"))
        return t.messages_sent, t.bytes_sent, t.time()

    return tuple(np.max(simulate(n, body, alpha=ALPHA, beta=BETA), axis=0))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])  # all divide 240
@pytest.mark.parametrize("name", ["reduce_scatter", "all_gather", "all_reduce"])
def test_ring(name, n):
    formula = getattr(cost, f"ring_{name}")(n, 960, ALPHA, BETA)
    assert measured(n, getattr(ring, name)) == formula


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_naive(n):
    assert measured(n, naive.all_reduce) == cost.naive_all_reduce(n, 960, ALPHA, BETA)


@pytest.mark.parametrize("name", ["broadcast", "reduce", "all_reduce"])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_tree_at_powers_of_two(name, n):
    formula = getattr(cost, f"tree_{name}")(n, 960, ALPHA, BETA)
    assert measured(n, getattr(tree, name)) == formula


@pytest.mark.parametrize("name", ["broadcast", "reduce", "all_reduce"])
@pytest.mark.parametrize("n", [3, 5, 6, 7, 9])
def test_tree_formula_is_an_upper_bound_elsewhere(name, n):
    formula = getattr(cost, f"tree_{name}")(n, 960, ALPHA, BETA)
    assert (np.array(measured(n, getattr(tree, name))) <= formula).all()


def test_unequal_chunks_cost_at_least_the_formula():
    # 7 does not divide 240: the ring waits for the longer chunks.
    formula = cost.ring_all_reduce(7, 960, ALPHA, BETA)
    messages, n_bytes, time_s = measured(7, ring.all_reduce)
    assert messages == 12 and n_bytes > formula.n_bytes and time_s > formula.time_s


def test_gamma_counts_each_reduced_byte_once():
    for formula, reduced in [
        (cost.ring_all_reduce, 960 * 3 / 4),
        (cost.naive_all_reduce, 960 * 3),
        (cost.tree_all_reduce, 960 * 2),
    ]:
        free = formula(4, 960, ALPHA, BETA)
        assert formula(4, 960, ALPHA, BETA, 1.0).time_s - free.time_s == reduced
