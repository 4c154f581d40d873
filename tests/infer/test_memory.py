"""The memory planner: never an overlap, near the bound, and as good as the best
of all orders."""

import random

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
    """The least arena, by trying all orders. Let each value of a best plan sink, the lowest first.
    Then each lies at the lowest place that the values below it leave. So one order gives this plan.
    """
    def lowest(value, placed):
        offset = 0
        for below, other in sorted(placed, key=lambda pair: pair[0]):
            if below >= offset + value.n_bytes:
                break
            if meet(value, other):
                offset = max(offset, below + other.n_bytes)
        return offset

    def least(placed, rest, arena, best):
        if arena >= best or not rest:
            return min(arena, best)
        for i, value in enumerate(rest):
            offset = lowest(value, placed)
            best = least([*placed, (offset, value)], rest[:i] + rest[i + 1 :],
                         max(arena, offset + value.n_bytes), best)
        return best

    return least([], values, 0, sum(v.n_bytes for v in values))


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
