"""minidl/data/upload.py: batches reach a GPU through pinned memory, and nobody waits for them.
Races of streams are found by the stand-in for CuPy."""

import contextlib

import numpy as np
import pytest

import minidl
from minidl.data import ArrayDataset, DataLoader, Pipeline
from tests.devices import host

pytestmark = pytest.mark.gpu


def dataset(n=50):
    x = np.random.default_rng(0).standard_normal((n, 3, 5)).astype("f4")
    return ArrayDataset(x, np.arange(n))


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_are_those_of_the_host(prefetch):
    there = DataLoader(dataset(), 8, prefetch=prefetch, device="cuda")
    for _ in range(2):
        for batch, batch_there in zip(DataLoader(dataset(), 8), there, strict=True):
            for a, b in zip(batch, batch_there, strict=True):
                assert b.device == "cuda:0" and a.dtype == b.dtype
                np.testing.assert_array_equal(host(b), a.array)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_memory_comes_back_while_copies_are_under_way(prefetch):
    """Each batch is freed at once, and its memory lent to the computation and to later batches."""
    sums = []
    for x, y in DataLoader(dataset(), 8, prefetch=prefetch, device="cuda"):
        scratch = (x * 2).sum()
        sums.append((scratch + y.sum()) * 1)
        del x, y, scratch
        minidl.ones(8, 3, 5, device="cuda") * 3  # may get the batch's memory
    x, y = (np.stack(a) for a in zip(*(dataset()[i] for i in range(50))))
    wanted = [2 * x[i:i + 8].sum() + y[i:i + 8].sum() for i in range(0, 50, 8)]
    np.testing.assert_allclose([s.item() for s in sums], wanted, rtol=1e-5)


def test_an_epoch_has_no_wait_and_no_pageable_upload():
    stand_in = pytest.importorskip("cupy.stand_in", reason="counted by the stand-in alone")
    batches = iter(DataLoader(dataset(), 8, device="cuda"))
    with stand_in.counting() as count:
        x, _ = next(batches)
        for _ in range(5):
            x, _ = next(batches)
    assert not count.waits and not count.uploads, count


def test_a_batch_may_hold_what_is_no_array():
    batches = list(DataLoader(list("abcd"), 2, collate_fn="".join, device="cuda"))
    assert batches == ["ab", "cd"]


def test_batches_of_a_pipeline_with_every_stage_are_those_of_the_host():
    """Those that a filter has left are gathered before they are copied."""
    for made in (lambda p: p.shuffle(1).batch(8), lambda p: p.map(lambda e: e[::-1]).batch(8),
                 lambda p: p.filter(lambda e: e[1] % 3 > 0).batch(8)):
        here, there = (made(Pipeline(dataset())) for _ in range(2))
        stand_in = getattr(__import__("cupy"), "stand_in", None)
        with stand_in.counting() if stand_in else contextlib.nullcontext() as count:
            batches = list(there.prefetch(2, device="cuda"))
        for batch, batch_there in zip(here, batches, strict=True):
            for a, b in zip(batch, batch_there, strict=True):
                assert b.device == "cuda:0"
                np.testing.assert_array_equal(host(b), a, strict=True)
        assert not stand_in or not count.uploads and list(count.waits) == [
            place for place in count.waits if "upload.py" in place]  # at the end of the pass, once
        assert not stand_in or sum(count.waits.values()) == 1
