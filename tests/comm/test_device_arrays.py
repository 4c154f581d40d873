"""Every collective on device arrays: the numbers, the bits and the bytes of host arrays.

Staged through pinned memory, and directly as a CUDA-aware MPI would send them (the stand-in's
device memory is the host's)."""

import importlib
import pkgutil

import numpy as np
import pytest

from minidl import comm
from minidl.comm import (
    all_to_all, average, chunks, codec, compressed, double_tree, halving_doubling, hierarchical,
    ring, ring_blocks, scatter_gather, select, shared_memory, simulate, tree,
)
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport import device
from tests.comm.cases import data, length_of
from tests.devices import Direct

CASES = [(0, "f4"), ("n-1", "f4"), ("n+1", "f2"), (101, "f4")]
SIZES = {"staged": [1, 2, 3, 4, 5, 8], "direct": [2, 3]}
FIGURES = select.Figures(1e-5, 1e-9, 1e-10, 1e-5, 1e-10, 1e-10)


def blocks(t, x):
    """Uneven ones, the second empty."""
    cuts = chunks.bounds(len(x), t.size)
    return [0, *(cuts[:1] + cuts[2:-1] if t.size > 2 else cuts[1:-1]), len(x)]


def even(t, x):
    """x cut to a multiple of the ranks, a row for each."""
    return x[: len(x) // t.size * t.size].reshape(t.size, -1)


def to_all(t, x):
    counts = [(t.rank + 2 * dst) % 3 for dst in range(t.size)]
    total = sum(counts)
    rows = x[:1].repeat(total) if len(x) < total else x[:total]
    if len(rows) < total:  # an empty x
        counts = [0] * t.size
    return all_to_all.all_to_all_v(t, rows, counts)[0]


def scattered(t, x):
    out = x[: len(x) // t.size].copy()
    return scatter_gather.scatter(t, x[: len(out) * t.size] if t.rank == t.size - 1 else None, out,
                                  t.size - 1)


def sparse(t, x):
    places = (abs(x) * 7).astype("i8")  # some come twice
    return compressed.sparse_all_reduce(t, places, x, 64)


# what each is called with: a 1-d array x that it may overwrite; of all of its results and of x
# the bits are compared
COLLECTIVES = {
    all_to_all.all_to_all: lambda f: lambda t, x: f(t, even(t, x)),
    all_to_all.all_to_all_v: lambda f: to_all,
    average.mean: lambda f: f,
    average.mean_block: lambda f: lambda t, x: f(t, x, blocks(t, x)),
    compressed.all_reduce: lambda f: f,
    compressed.mean: lambda f: lambda t, x: f(t, x, codec.FP16),
    compressed.sparse_all_reduce: lambda f: sparse,
    double_tree.all_reduce: lambda f: lambda t, x: f(t, x, segment_bytes=64),
    halving_doubling.reduce_scatter: lambda f: f,
    halving_doubling.all_gather: lambda f: f,
    halving_doubling.all_reduce: lambda f: lambda t, x: f(t, x, np.maximum),
    halving_doubling.doubling_all_reduce: lambda f: f,
    hierarchical.all_reduce: lambda f: lambda t, x: f(t, x, groups=hierarchical.groups(t, 2)),
    hierarchical.leader_all_reduce: lambda f: lambda t, x: f(
        t, x, np.minimum, groups=hierarchical.groups(t, 3)),
    ring.reduce_scatter: lambda f: f,
    ring.all_gather: lambda f: f,
    ring.all_reduce: lambda f: lambda t, x: f(t, x[::2]),  # not contiguous
    ring_blocks.reduce_scatter: lambda f: lambda t, x: f(t, x, blocks(t, x)),
    ring_blocks.all_gather: lambda f: lambda t, x: f(t, x, blocks(t, x)),
    ring_blocks.all_reduce: lambda f: f,
    ring_blocks.all_gather_v: lambda f: lambda t, x: f(t, x[: len(x) - t.rank % 3])[0],
    scatter_gather.scatter: lambda f: scattered,
    scatter_gather.gather: lambda f: lambda t, x: f(t, x, t.size // 2),
    select.all_reduce: lambda f: lambda t, x: f(t, x, figures=FIGURES),
    shared_memory.all_reduce: lambda f: lambda t, x: f(t, x, chunk_bytes=256),
    tree.broadcast: lambda f: lambda t, x: f(t, x, t.size - 1),
    tree.reduce: lambda f: lambda t, x: f(t, x, t.size // 2),
    tree.all_reduce: lambda f: lambda t, x: f(t, x.reshape(len(x), 1)),
    device.all_reduce: lambda f: f,
    device.staged_all_reduce: lambda f: f,
    device.mean_block: lambda f: lambda t, x: f(t, x.copy(), blocks(t, x)),
    device.all_gather: lambda f: lambda t, x: f(t, x, blocks(t, x)),
    device.broadcast: lambda f: lambda t, x: f(t, x, t.size // 2),
}
MADE_OF_OTHERS = {"average.mean_block", "device.mean_block", "device.all_gather",
                  "device.broadcast"}
NO_ARRAYS = {"tree.barrier", "ring_blocks.bounds_of"}  # and objects.py
OWN_TESTS = {"nccl": "transport/test_nccl.py", "objects": "test_objects.py"}


def test_none_is_missing():
    found = set()
    for module in pkgutil.walk_packages(comm.__path__, "minidl.comm."):
        for value in vars(importlib.import_module(module.name)).values():
            fn = getattr(value, "__wrapped__", None)
            if hasattr(fn, "own_args"):
                found.add(f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}")
    named = {f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}" for fn in COLLECTIVES}
    found = {name for name in found - NO_ARRAYS if name.partition(".")[0] not in OWN_TESTS}
    named -= MADE_OF_OTHERS
    assert not found - named, (f"give {sorted(found - named)} a line in COLLECTIVES of this file: "
                               "how it is called; `lambda f: f` if as f(t, x)")
    assert not named - found, f"{sorted(named - found)} in COLLECTIVES: there is no such function"


def on_host(value):
    return value.get() if hasattr(value, "get") else value


def results(t, call, length, dtype, place):
    """(what it returns, x afterwards, bytes and messages sent to each)"""
    x, ledger = place(data(t.rank, length, dtype)), Ledger(t)
    y = call(ledger, x)
    return on_host(y), on_host(x), [ledger.count(peer=p) for p in range(t.size)]


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["staged", "direct"])
@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_numbers_bits_and_bytes_are_those_of_host_arrays(collective, way):
    import cupy

    call = COLLECTIVES[collective](collective)

    def body(t):
        for length, dtype in CASES:
            n = length_of(length, t.size)
            want = results(t, call, n, dtype, np.array)
            on = Direct(t) if way == "direct" else t
            got = results(on, call, n, dtype, cupy.asarray)
            for a, b in zip(got[:2], want[:2], strict=True):
                np.testing.assert_array_equal(a, b, strict=True)
            assert got[2] == want[2]

    for n in SIZES[way]:
        simulate(n, body)
