"""Chooses where each value of a plan begins in the arena.
Two values may share bytes if no step needs both values.

The plain form, with a picture of lifetimes: minidl/plain/memory_plan.py. There a value goes into
the lowest free gap. Here it goes into the smallest free gap. Also, this file tries several orders
of the values, and checks that no two values overlap.

A value is alive from the step that writes it to the last step that reads it. At each step, all
values that are alive must fit in the arena. The bound is the largest number of bytes that are alive
at one step. No plan can need less. A greedy method places the largest values first. Usually its
plan needs no more than the bound. The result depends on the order of the values, so `plan` tries
three orders. If the best plan needs more than the bound, the value that ends at the highest address
goes to the front of the order. Then all values are placed again. This is repeated up to ROUNDS
times. The exact optimum is NP-hard to find. tests/infer/test_memory.py computes the optimum of
small inputs by a mixed-integer program.

Source: Pisarchyk & Lee 2020 (arXiv 2001.03288).   Test: tests/infer/test_memory.py
"""

from dataclasses import dataclass, replace

ALIGN = 64  # each value begins at a multiple of ALIGN bytes, the size of a cache line
ROUNDS = 30  # the most times that all values are placed, for each of the three orders


@dataclass(frozen=True)
class Lifetime:
    """A value of n_bytes. It is written at step `first` and read for the last time at step
    `last`."""

    n_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Memory:
    """A memory plan. All numbers are bytes.

    offsets: where each value begins.
    total: the arena's size if no two values share bytes.
    arena: the arena's size.
    bound: a lower bound of the arena's size, for every plan."""

    offsets: tuple
    total: int
    arena: int
    bound: int

    def __str__(self):
        return f"{self.total:,} bytes, shared {self.arena:,}, bound {self.bound:,}"


def meet(a, b):
    """Returns True if there is a step at which the values a and b are both alive."""
    return a.first <= b.last and b.first <= a.last


def plan(lifetimes, meet=meet):
    """Returns the Memory of these Lifetimes. meet(a, b): a function that returns True if the values
    a and b must not share bytes. With several GPU streams, meet returns True for more pairs of
    values (streams.py)."""
    padded = [replace(v, n_bytes=max(-(-v.n_bytes // ALIGN), 1) * ALIGN) for v in lifetimes]

    def length(v):
        return v.last - v.first + 1

    keys = (lambda v: (-v.n_bytes, -length(v)), lambda v: (-v.n_bytes * length(v), -v.n_bytes),
            lambda v: (-length(v), -v.n_bytes))
    numbers, least, best = range(len(padded)), bound(padded), None
    for key in keys:
        order = sorted(numbers, key=lambda i: key(padded[i]))
        for _ in range(ROUNDS):
            offsets = greedy(padded, order, meet)
            if best is None or size_of(padded, offsets) < size_of(padded, best):
                best = offsets
            if size_of(padded, best) == least:
                break
            highest = max(numbers, key=lambda i: offsets[i] + padded[i].n_bytes)
            order.remove(highest)
            order.insert(0, highest)
    check(padded, best, meet)
    return Memory(tuple(best), sum(v.n_bytes for v in padded), size_of(padded, best), least)


def greedy(lifetimes, order, meet=meet):
    """Places the values in the order `order`. Returns a list with the offset of each value. A value
    goes into the smallest gap that is large enough. If no gap is large enough, the value goes above
    all placed values with which it must not share bytes."""
    offsets, placed = [0] * len(lifetimes), []
    for i in order:
        v, at, best = lifetimes[i], 0, None
        for offset, other in sorted((offsets[j], j) for j in placed if meet(v, lifetimes[j])):
            gap = offset - at
            if gap >= v.n_bytes and (best is None or gap < best[0]):
                best = gap, at
            at = max(at, offset + lifetimes[other].n_bytes)
        offsets[i] = at if best is None else best[1]
        placed.append(i)
    return offsets


def size_of(lifetimes, offsets):
    """Returns the number of bytes of the arena: the largest sum of a value's offset and size."""
    return max((o + v.n_bytes for o, v in zip(offsets, lifetimes, strict=True)), default=0)


def bound(lifetimes):
    """Adds the bytes of all values that are alive at a step. Returns the largest of these sums.
    Only the steps at which a value is written are tested, because the sum grows only there."""
    return max((sum(w.n_bytes for w in lifetimes if w.first <= v.first <= w.last)
                for v in lifetimes), default=0)


def check(lifetimes, offsets, meet=meet):
    """Raises ValueError if two values share a byte although meet() returns True for these
    values."""
    for i, (v, at) in enumerate(zip(lifetimes, offsets, strict=True)):
        for j in range(i):
            w, there = lifetimes[j], offsets[j]
            if meet(v, w) and at < there + w.n_bytes and there < at + v.n_bytes:
                raise ValueError(f"memory: values {j} and {i} must not share bytes. In the "
                                 f"arena, value {j} has the bytes {there} to {there + w.n_bytes}, "
                                 f"and value {i} has the bytes {at} to {at + v.n_bytes}")
