"""The memory planner: never an overlap, near the bound, and as good as an exact program."""

import random

import numpy as np
import pytest

from minidl.infer.memory import ALIGN, Lifetime, bound, check, greedy, meet, plan, size_of
from tests.conftest import n_drawn


def lifetimes(seed, n):
    """Values as a random graph makes them: one a step, read for some steps, a few to the end."""
    r = random.Random(seed)
    return [Lifetime(int(2 ** r.uniform(6, 20)), i,
                     n if r.random() < 0.1 else min(n, i + 1 + int(r.expovariate(1 / 3))))
            for i in range(n)]


def test_200_random_graphs_are_within_a_tenth_of_the_bound_and_never_overlap():
    for seed in range(n_drawn(200)):
        values = lifetimes(seed, 5 + seed % 56)
        memory = plan(values)
        assert memory.arena <= 1.1 * memory.bound, seed
        for i, (v, at) in enumerate(zip(values, memory.offsets)):  # byte by byte, not by `check`
            assert at % ALIGN == 0
            for w, there in zip(values[:i], memory.offsets):
                if set(range(v.first, v.last + 1)) & set(range(w.first, w.last + 1)):
                    assert at + v.n_bytes <= there or there + w.n_bytes <= at, seed


def test_a_chain_needs_its_two_largest_neighbours():
    chain = [Lifetime(64 * n, i, i + 1) for i, n in enumerate([3, 5, 2, 7, 1])]
    memory = plan(chain)
    assert memory.arena == memory.bound == 64 * 9 and memory.total == 64 * 18


def test_an_overlap_is_refused():
    values = [Lifetime(64, 0, 2), Lifetime(64, 1, 3)]
    with pytest.raises(ValueError, match="values 0 and 1 must not share bytes"):
        check(values, [0, 32])
    check(values, [0, 64])
    check([Lifetime(64, 0, 1), Lifetime(64, 2, 3)], [0, 0])


def test_nothing_to_plan():
    memory = plan([])
    assert (memory.offsets, memory.arena, memory.bound) == ((), 0, 0)


def exact(values):
    """The least arena, by a mixed-integer program: for two values that meet, a bit says which one
    lies below. Variables: offsets, the size, the bits; in cache lines."""
    optimize = pytest.importorskip("scipy.optimize")
    values = [Lifetime(v.n_bytes // ALIGN, v.first, v.last) for v in values]
    n, most = len(values), sum(v.n_bytes for v in values)
    pairs = [(i, j) for i in range(n) for j in range(i) if meet(values[i], values[j])]
    rows, upper = [], []

    def at_most(limit, **terms):
        row = np.zeros(n + 1 + len(pairs))
        for name, factor in terms.items():
            row[int(name[1:])] = factor
        rows.append(row)
        upper.append(limit)

    for i, v in enumerate(values):
        at_most(-v.n_bytes, **{f"_{i}": 1, f"_{n}": -1})  # offset + bytes <= size
    for k, (i, j) in enumerate(pairs):
        bit = f"_{n + 1 + k}"
        at_most(most - values[i].n_bytes, **{f"_{i}": 1, f"_{j}": -1, bit: most})
        at_most(-values[j].n_bytes, **{f"_{j}": 1, f"_{i}": -1, bit: -most})
    cost = np.zeros(n + 1 + len(pairs))
    cost[n] = 1
    result = optimize.milp(
        cost, constraints=optimize.LinearConstraint(np.array(rows), -np.inf, upper),
        options={"presolve": False}, integrality=np.r_[np.zeros(n + 1), np.ones(len(pairs))],
        bounds=optimize.Bounds(0, np.r_[np.full(n + 1, most), np.ones(len(pairs))]))
    assert result.success
    return ALIGN * round(result.fun)


def test_the_plan_is_as_small_as_the_exact_one():
    r = random.Random(1)
    for seed in range(n_drawn(12)):
        values = [Lifetime(64 * r.randint(1, 9), i, i + r.randint(1, 4)) for i in range(7)]
        memory = plan(values)
        assert memory.bound <= exact(values) <= memory.arena <= 1.1 * exact(values), seed


def test_greedy_puts_a_value_into_the_smallest_gap_that_fits():
    values = [Lifetime(128, 0, 9), Lifetime(192, 0, 3), Lifetime(64, 0, 9), Lifetime(64, 0, 3),
              Lifetime(64, 0, 9), Lifetime(64, 5, 9)]
    offsets = greedy(values, range(6))
    assert offsets[:5] == [0, 128, 320, 384, 448]
    assert offsets[5] == 384  # of the gaps 128 to 320 and 384 to 448
    assert size_of(values, offsets) == bound(values) == 512
