"""Where each value of a plan lies: values that are never alive together may share bytes.

The plain form, with a picture of lifetimes: minidl/plain/memory_plan.py. Here: the smallest gap and
not the lowest, several orders, and a check that nothing overlaps.

No plan needs less than the most bytes that are alive at one step, the bound; greedy by size is
mostly at it. What is left of a gap depends on the order, so three orders are tried; while the best
needs more than the bound, the value that ends highest goes to the front, and all are placed again.
The exact answer is NP-hard; tests/infer/test_memory.py has it for small ones, by a mixed-integer
program.

Source: Pisarchyk & Lee 2020 (arXiv 2001.03288).   Test: tests/infer/test_memory.py
"""

from dataclasses import dataclass, replace

ALIGN = 64  # bytes: a cache line, a vector register
ROUNDS = 30  # in which a value goes to the front


@dataclass(frozen=True)
class Lifetime:
    """n_bytes, written first at step `first`, read last at step `last`."""

    n_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Memory:
    """offsets: where each value begins. total: without sharing; arena: with it; bound: the least
    that any plan needs; all in bytes."""

    offsets: tuple
    total: int
    arena: int
    bound: int

    def __str__(self):
        return f"{self.total:,} bytes, shared {self.arena:,}, bound {self.bound:,}"


def meet(a, b):
    """Whether both are alive at some step."""
    return a.first <= b.last and b.first <= a.last


def plan(lifetimes, meet=meet):
    """The Memory of these Lifetimes. meet(a, b): whether two may not share bytes; on several
    streams more of them than here (streams.py)."""
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
    """Offsets: in this order, each into the smallest gap that fits, else above all."""
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
    return max((o + v.n_bytes for o, v in zip(offsets, lifetimes, strict=True)), default=0)


def bound(lifetimes):
    """The most bytes alive at one step: at a step where some value begins."""
    return max((sum(w.n_bytes for w in lifetimes if w.first <= v.first <= w.last)
                for v in lifetimes), default=0)


def check(lifetimes, offsets, meet=meet):
    """ValueError if two values that are alive together share a byte."""
    for i, (v, at) in enumerate(zip(lifetimes, offsets, strict=True)):
        for j in range(i):
            w, there = lifetimes[j], offsets[j]
            if meet(v, w) and at < there + w.n_bytes and there < at + v.n_bytes:
                raise ValueError(f"memory: values {j} and {i} are alive together and overlap: "
                                 f"[{there}, {there + w.n_bytes}) and [{at}, {at + v.n_bytes})")
