"""The cost formulas equal the simulator's clock and the ledger's counts, where they promise to."""

from functools import partial

import numpy as np
import pytest

from minidl.comm import cost, double_tree
from minidl.comm import halving_doubling as hd
from minidl.comm import hierarchical, ring, simulate, tree
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.links import Links
from minidl.plain import naive

# Powers of two, so that sums of them are exact in floating point.
ALPHA, BETA = 2.0**-10, 2.0**-20

UP_TO_64 = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 32, 33, 48, 63, 64)
POWERS_OF_2 = (1, 2, 4, 8, 16, 32, 64)
OTHERS = (3, 5, 6, 7, 9, 12, 24, 33, 63)


def measured(n, fn, n_elems=240, **network):
    """(messages and bytes of the busiest rank, the last rank's clock) of fn(t, x)."""

    def body(t):
        t = Ledger(t)
        fn(t, np.ones(n_elems, "f4"))
        return t.messages_sent, t.bytes_sent, t.time()

    network = network or {"alpha": ALPHA, "beta": BETA}
    return tuple(np.max(simulate(n, body, **network), axis=0))


@pytest.mark.parametrize("name", ["reduce_scatter", "all_gather", "all_reduce"])
def test_ring(name):
    for n in UP_TO_64:
        formula = getattr(cost, f"ring_{name}")(n, 4 * n * 3, ALPHA, BETA)
        assert measured(n, getattr(ring, name), 3 * n) == formula, n


def test_naive():
    for n in UP_TO_64:
        carried = (n - 1) * 960
        time_s = 2 * ALPHA * (n > 1) + 2 * carried * BETA
        assert measured(n, naive.all_reduce) == (n - 1, carried, time_s), n


@pytest.mark.parametrize("name", ["broadcast", "reduce", "all_reduce"])
def test_tree_at_powers_of_two(name):
    for n in POWERS_OF_2:
        formula = getattr(cost, f"tree_{name}")(n, 960, ALPHA, BETA)
        assert measured(n, getattr(tree, name)) == formula, n


@pytest.mark.parametrize("name", ["broadcast", "reduce", "all_reduce"])
def test_tree_formula_is_an_upper_bound_elsewhere(name):
    for n in OTHERS:
        formula = getattr(cost, f"tree_{name}")(n, 960, ALPHA, BETA)
        assert (np.array(measured(n, getattr(tree, name))) <= formula).all(), n


def test_halving_and_doubling_at_any_number_of_ranks():
    for n in UP_TO_64:
        formula = cost.halving_doubling_all_reduce(n, 960 * 4, ALPHA, BETA)
        assert measured(n, hd.all_reduce, 960) == formula, n  # 64, and so every p, divides 960


def test_doubling_at_powers_of_two_and_a_bound_elsewhere():
    for n in UP_TO_64:
        formula = cost.doubling_all_reduce(n, 960, ALPHA, BETA)
        messages, n_bytes, time_s = measured(n, hd.doubling_all_reduce)
        assert (messages, n_bytes) == formula[:2], n
        assert time_s == formula.time_s if n in POWERS_OF_2 else time_s <= formula.time_s, n


def test_double_tree_in_one_segment_at_any_number_of_ranks():
    for n in UP_TO_64:
        assert measured(n, double_tree.all_reduce) == cost.double_tree_all_reduce(
            n, 960, ALPHA, BETA
        ), n


@pytest.mark.parametrize("segments", [2, 4, 30])
def test_double_tree_in_segments_takes_at_most_the_formula(segments):
    all_reduce = partial(double_tree.all_reduce, segment_bytes=480 // segments)
    for n in (2, 3, 4, 5, 7, 8, 16, 33):
        for alpha in (0.0, 16 * BETA, 1.0):
            formula = cost.double_tree_all_reduce(n, 960, alpha, BETA, segments=segments)
            messages, n_bytes, time_s = measured(n, all_reduce, alpha=alpha, beta=BETA)
            assert (messages, n_bytes) == formula[:2]
            # Latencies overlap with the ports' work a little, and two ranks' ports are half idle.
            assert (0.4 if n == 2 else 0.55) * formula.time_s < time_s <= formula.time_s, (n, alpha)


SHAPES = [(m, g) for m in (1, 2, 3, 4, 16) for g in (1, 2, 3, 4, 8) if m * g < 30 or m * g == 64]


def by_nodes(g, t, x):
    hierarchical.all_reduce(t, x, groups=hierarchical.groups(t, g))


def by_leaders(g, t, x):
    hierarchical.leader_all_reduce(t, x, groups=hierarchical.groups(t, g))


@pytest.mark.parametrize("nic", ["node", "rank"])
def test_hierarchical_on_links_that_differ(nic):
    inside, between = (ALPHA / 8, BETA / 4), (ALPHA, BETA)
    for m, g in SHAPES:
        links = Links.nodes(g, inside, between, nic)
        share = g if nic == "node" else 1
        got = measured(m * g, partial(by_nodes, g), 6 * m * g, links=links)
        formula = cost.hierarchical_all_reduce(m, g, 24 * m * g, inside, between, share=share)
        assert got == formula, (m, g)


def test_leaders_at_powers_of_two_in_a_node():
    inside, between = (ALPHA / 8, BETA / 4), (ALPHA, BETA)
    for m, g in SHAPES:
        if g in POWERS_OF_2:
            tree_inside = cost.tree_all_reduce(g, 24 * m, *inside)
            formula = np.add(tree_inside, cost.ring_all_reduce(m, 24 * m, *between))
            links = Links.nodes(g, inside, between)
            got = measured(m * g, partial(by_leaders, g), 6 * m, links=links)
            assert got == tuple(formula), (m, g)


def test_unequal_chunks_cost_at_least_the_formula():
    # 7 does not divide 240: the ring waits for the longer chunks.
    formula = cost.ring_all_reduce(7, 960, ALPHA, BETA)
    messages, n_bytes, time_s = measured(7, ring.all_reduce)
    assert messages == 12 and n_bytes > formula.n_bytes and time_s > formula.time_s


def test_gamma_counts_each_reduced_byte_once():
    for formula, reduced in [
        (cost.ring_all_reduce, 960 * 3 / 4),
        (cost.tree_all_reduce, 960 * 2),
        (cost.halving_doubling_all_reduce, 960 * 3 / 4),
        (cost.doubling_all_reduce, 960 * 2),
        (cost.double_tree_all_reduce, 960 * 2),  # two halves on each of two levels
    ]:
        free = formula(4, 960, ALPHA, BETA)
        assert formula(4, 960, ALPHA, BETA, 1.0).time_s - free.time_s == reduced


def test_gamma_of_a_hierarchical_all_reduce_is_that_of_one_ring():
    """(1 - 1/gm) K gamma."""
    for m, g in SHAPES:
        n_bytes = 24.0 * m * g
        free = cost.hierarchical_all_reduce(m, g, n_bytes, (0, 0), (0, 0), 1.0)
        assert free.time_s == pytest.approx(n_bytes - 24, rel=1e-15)


def test_a_rank_has_its_port_alone_unless_said_otherwise():
    for m, g in SHAPES:
        links = (ALPHA / 8, BETA / 4), (ALPHA, BETA)
        got = cost.hierarchical_all_reduce(m, g, 960, *links)
        assert got == cost.hierarchical_all_reduce(m, g, 960, *links, share=1)


def test_a_shared_window_is_read_without_messages():
    for segments in (0, 1, 3):
        assert cost.shared_memory_all_reduce(4, 960, ALPHA, BETA, segments=segments).messages == 0


def test_best_segments_is_the_least_of_all():
    cases = [(1e6, 1e-9, 1e-5, 6), (4e5, 1e-9, 3e-6, 2), (8, 1, 1, 1), (9, 1, 5, 0)]
    for n_bytes, beta, per_segment, extra in cases:
        best = cost.best_segments(n_bytes, beta, per_segment, extra)
        times = [per_segment * s + extra * n_bytes * beta / s for s in range(1, 200)]
        assert best == 1 + int(np.argmin(times))
    with pytest.raises(ValueError, match="wanted per_segment > 0"):
        cost.best_segments(1e6, 1e-9, 0.0, 6)


@pytest.mark.parametrize("n, n_bytes", [(4, 1e6), (8, 1e6), (64, 1e8)])
def test_best_segments_of_the_double_tree_are_the_least_of_its_formula(n, n_bytes):
    height = (n - 1).bit_length()
    trees = [
        cost.double_tree_all_reduce(n, n_bytes, 1e-5, 1e-9, segments=s).time_s
        for s in range(1, 2000)
    ]
    assert 1 + int(np.argmin(trees)) == cost.best_segments(n_bytes, 1e-9, 1e-5, 2 * height - 3)


def test_crossover_equals_the_closed_form():
    # 8 ranks. Tree against ring: 6 alpha + 6 K beta = 14 alpha + 14/8 K beta.
    alpha, beta = 1e-5, 1e-9
    for first, second, size in [
        (cost.tree_all_reduce, cost.ring_all_reduce, 8 / (6 - 14 / 8) * alpha / beta),
        (cost.doubling_all_reduce, cost.halving_doubling_all_reduce, 3 / (3 - 14 / 8) * 1e4),
    ]:
        found = cost.crossover(
            lambda k, f=first: f(8, k, alpha, beta), lambda k, f=second: f(8, k, alpha, beta)
        )
        assert found == int(size) + 1
        assert first(8, found - 1, alpha, beta).time_s <= second(8, found - 1, alpha, beta).time_s


def test_crossover_at_the_ends():
    line = lambda a, b: lambda k: a + b * k  # noqa: E731  seconds as such will do
    assert cost.crossover(line(0, 1), line(1, 2)) is None
    assert cost.crossover(line(1, 2), line(0, 1)) == 1
    assert cost.crossover(line(0, 1), line(10, 0)) == 11
    assert cost.crossover(line(0, 1), line(10, 0), high=9) is None
