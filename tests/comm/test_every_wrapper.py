"""Every collective gives the same under every wrapper of a transport, simulated and under MPI."""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest

from minidl import comm
from minidl.comm import (
    all_to_all, average, compressed, double_tree, halving_doubling, hierarchical, objects, ring,
    ring_blocks, scatter_gather, select, shared_memory, tree,
)
from minidl.comm.collective import label_of
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.select import Figures
from minidl.comm.transport.links import Links
from minidl.comm.transport.throttled import Throttled
from tests.comm.cases import data
from tests.conftest import ranks

LENGTH = 13  # no number of ranks divides it
FIGURES = Figures(5e-6, 4e-10, 2e-10, None, None, 1e-10)


def own(t):
    return data(t.rank, LENGTH, "f8")


def of_all(t):
    return np.array([data(r, LENGTH, "f8") for r in range(t.size)])


def total(t):
    return of_all(t).sum(axis=0)


def summed(fn, **options):
    """The case of an all-reduce: (what it gives, what is wanted)."""
    return lambda t: (fn(t, own(t), **options), total(t))


def blocks(fn):
    """The case of an all-gather: each rank has filled its block."""
    def case(t):
        bounds = comm.chunks.bounds(LENGTH, t.size)
        x = np.zeros(LENGTH)
        mine = slice(*bounds[t.rank:t.rank + 2])
        x[mine] = own(t)[mine]
        want = np.concatenate([of_all(t)[r, bounds[r]:bounds[r + 1]] for r in range(t.size)])
        return fn(t, x, bounds), want
    return case


def scattered(fn):
    """The case of a reduce-scatter: of the result the own block counts."""
    def case(t):
        bounds = comm.chunks.bounds(LENGTH, t.size)
        mine = slice(*bounds[t.rank:t.rank + 2])
        got = fn(t, own(t), bounds)
        return got if len(got) != LENGTH else got[mine], total(t)[mine]
    return case


def pairs(t):
    """Each rank sends its first two elements; they add up."""
    want = np.zeros(LENGTH)
    want[:2] = of_all(t)[:, :2].round().sum(axis=0)
    got = compressed.sparse_all_reduce(t, np.array([0, 1]), own(t)[:2].round().astype("f4"), LENGTH)
    return got, want.astype("f4")


def to_all(t):
    x = np.arange(t.size * 2.0).reshape(t.size, 2) + 100 * t.rank
    return all_to_all.all_to_all(t, x), np.array(
        [[2 * t.rank + 100 * r, 2 * t.rank + 1 + 100 * r] for r in range(t.size)])


def to_all_v(t):
    """r + 1 rows to every rank."""
    n = t.rank + 1
    got, counts = all_to_all.all_to_all_v(t, np.full((n * t.size, 2), t.rank), [n] * t.size)
    assert counts == [r + 1 for r in range(t.size)]
    return got[:, 0], np.repeat(np.arange(t.size), counts)


def at_root(t, got, want):
    return (got, want) if t.rank == 0 else (np.zeros(0), np.zeros(0))


def from_root(fn):
    return lambda t: (fn(t, own(t)), data(0, LENGTH, "f8"))


def scatter(t):
    bounds = comm.chunks.bounds(LENGTH, t.size)
    out = np.empty(bounds[t.rank + 1] - bounds[t.rank])
    got = scatter_gather.scatter(t, own(t) if t.rank == 0 else None, out, bounds=bounds)
    return got, data(0, LENGTH, "f8")[bounds[t.rank]:bounds[t.rank + 1]]


def barrier(t):
    tree.barrier(t)
    return np.zeros(1), np.zeros(1)


def ring_gather(t):
    x = own(t)
    ring.reduce_scatter(t, x)
    return ring.all_gather(t, x), total(t)


def halves(t):
    x = own(t)
    halving_doubling.reduce_scatter(t, x)
    return halving_doubling.all_gather(t, x), total(t)


# label -> a function of a transport: (what the collective gives on this rank, what is wanted)
CASES = {
    "all_to_all.all_to_all": to_all,
    "all_to_all.all_to_all_v": to_all_v,
    "average.mean": lambda t: (average.mean(t, own(t)), total(t) / t.size),
    "compressed.all_reduce": lambda t: (np.round(compressed.all_reduce(
        t, np.full(LENGTH, t.rank + 1.0, "f4"))), np.full(LENGTH, t.size * (t.size + 1) / 2)),
    "compressed.mean": lambda t: (np.round(2 * compressed.mean(
        t, np.full(LENGTH, t.rank + 1.0, "f4"))), np.full(LENGTH, t.size + 1)),
    "compressed.sparse_all_reduce": pairs,
    "double_tree.all_reduce": summed(double_tree.all_reduce),
    "halving_doubling.reduce_scatter": halves,
    "halving_doubling.all_gather": halves,
    "halving_doubling.all_reduce": summed(halving_doubling.all_reduce),
    "halving_doubling.doubling_all_reduce": summed(halving_doubling.doubling_all_reduce),
    "hierarchical.all_reduce": lambda t: (
        hierarchical.on_nodes(t, 2)(t, own(t)), total(t)),
    "hierarchical.leader_all_reduce": lambda t: (hierarchical.leader_all_reduce(
        t, own(t), groups=hierarchical.groups(t, 2)), total(t)),
    "objects.broadcast": lambda t: (
        np.array(objects.broadcast(t, [t.rank, "x"])[0]), np.array(0)),
    "objects.gather": lambda t: at_root(
        t, np.array(objects.gather(t, t.rank) or []), np.arange(t.size)),
    "objects.all_gather": lambda t: (np.array(objects.all_gather(t, t.rank)), np.arange(t.size)),
    "ring.reduce_scatter": ring_gather,
    "ring.all_gather": ring_gather,
    "ring.all_reduce": summed(ring.all_reduce),
    "ring_blocks.reduce_scatter": scattered(ring_blocks.reduce_scatter),
    "ring_blocks.all_gather": blocks(ring_blocks.all_gather),
    "ring_blocks.all_reduce": summed(ring_blocks.all_reduce),
    "ring_blocks.all_gather_v": lambda t: (
        ring_blocks.all_gather_v(t, np.full(t.rank, t.rank))[0],
        np.repeat(np.arange(t.size), np.arange(t.size))),
    "ring_blocks.bounds_of": lambda t: (
        np.array(ring_blocks.bounds_of(t, t.rank)), np.cumsum([0, *range(t.size)])),
    "scatter_gather.scatter": scatter,
    "scatter_gather.gather": lambda t: at_root(
        t, scatter_gather.gather(t, own(t)), of_all(t).reshape(-1)),
    "select.all_reduce": summed(select.all_reduce, figures=FIGURES),
    "shared_memory.all_reduce": summed(shared_memory.all_reduce),
    "tree.broadcast": from_root(tree.broadcast),
    "tree.reduce": lambda t: at_root(t, tree.reduce(t, own(t)), total(t)),
    "tree.all_reduce": summed(tree.all_reduce),
    "tree.barrier": barrier,
}

WRAPPERS = {
    "plain": lambda t: t,
    "Watch": Watch,
    "Ledger": Ledger,
    "Ledger of a Watch": lambda t: Ledger(Watch(t)),
    "Watch of a Ledger": lambda t: Watch(Ledger(t)),
    "Throttled": lambda t: throttled(t),
    "group of a Watch": lambda t: Watch(t).subgroup(range(t.size)),
    "Watch of a group": lambda t: Watch(t.subgroup(range(t.size))),
}


def throttled(t):
    """Real seconds, so under MPI alone; the simulator's transport has a clock of its own."""
    if type(t.innermost).__name__ == "SimTransport":
        return t
    return Throttled(t, Links.uniform(1e-6, 1e-10))


def labels(wrapper):
    """Shared memory would not feel slow links: Throttled refuses it (test_throttled.py)."""
    return [label for label in CASES
            if (wrapper, label) != ("Throttled", "shared_memory.all_reduce")]


def check(t, label):
    got, want = CASES[label](t)
    np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=label)


def test_every_collective_has_a_case():
    found = set()
    for module in pkgutil.iter_modules(comm.__path__):
        whole = importlib.import_module(f"minidl.comm.{module.name}")
        for name, fn in vars(whole).items():
            if inspect.isfunction(fn) and hasattr(fn, "own_args") and fn.__module__ == (
                    whole.__name__) and name[0] != "_":
                found.add(label_of(fn))
    assert not found - set(CASES), (
        f"give {sorted(found - set(CASES))} a line in CASES of tests/comm/test_every_wrapper.py: a "
        "function of a transport t. It returns two arrays, the result on this rank and what is "
        "wanted. An all-reduce: summed(ring.all_reduce)")
    assert not set(CASES) - found, (
        f"{sorted(set(CASES) - found)} in CASES: there is no such collective")


@pytest.mark.parametrize("wrapper", WRAPPERS)
@ranks(1, 2, 3, 4, 5, 8)
def test_every_collective_under_every_wrapper(t, wrapper):
    """One after the other, forwards and backwards: none leaves a message for the next."""
    wrapped = WRAPPERS[wrapper](t)
    for label in [*labels(wrapper), *reversed(labels(wrapper))]:
        check(wrapped, label)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@ranks(1, 2, 3, 4)
def test_every_collective_in_the_background_of_every_wrapper(t, wrapper):
    wrapped = WRAPPERS[wrapper](t)
    jobs = [wrapped.in_background(check, label) for label in labels(wrapper)]
    for job in jobs:
        job.wait()
