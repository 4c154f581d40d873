"""A parallel step on a GPU: the host waits for the device where its messages need it, nowhere else.

Each rank, staged through pinned memory: once for each bucket that is reduced or scattered, and once
for each whose blocks are gathered. Nothing of theirs is uploaded from memory that is not pinned."""

import contextlib

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate, tree
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Offload, Zero1, Zero2, Zero3
from tests.comm.transport.test_nccl import connected
from tests.devices import host, put

pytestmark = pytest.mark.gpu
STAGES = [DataParallel, Zero1, Zero2, Zero3]


def counted_step(t, stage, offload=False):
    """(waits, uploads) of all ranks in the fourth step, by the place in the code; the buckets."""
    from cupy import stand_in

    minidl.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]).to("cuda")
    small = {} if stage == 3 else {"bucket_bytes": 200, "first_bucket_bytes": 200}
    model = STAGES[stage](model, t, **small)
    optimizer = optim.AdamW(model.shards() if stage else model.parameters(), lr=0.1)
    if offload:
        optimizer = Offload(optimizer)
    x, y = (minidl.Tensor(put(a.astype("f4"), "cuda"))
            for a in np.random.default_rng(t.rank).normal(size=(2, 3, 8)))

    def step():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if stage:
            model.gather()

    for _ in range(3):  # buckets are made anew, states are made, kernels are compiled
        step()
    tree.barrier(t)
    with stand_in.counting() if t.rank == 0 else contextlib.nullcontext() as count:
        tree.barrier(t)
        step()
        tree.barrier(t)
    n_buckets = len(model.reducer.buckets)
    weights = [host(w) for w in model.state_dict().values()]
    model.close()
    return (count.waits, count.uploads) if count else None, n_buckets, weights


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_step_waits_once_for_each_bucket_that_travels(stage, n):
    pytest.importorskip("cupy.stand_in", reason="the stand-in counts, a GPU does not")
    (waits, uploads), n_buckets, _ = simulate(n, counted_step, stage)[0]
    # stage 3 gathers each unit in forward and in backward
    travels = [1, 2, 2, 3][stage]
    assert n_buckets >= 4
    assert sum(waits.values()) == n * travels * n_buckets, waits
    assert not [place for place in uploads if not place.startswith("ops/")], uploads
    assert all("comm/transport/" in place for place in waits), waits


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [2, 3])
def test_with_nccl_nobody_waits_and_the_weights_are_those_of_pinned_memory(stage, n):
    pytest.importorskip("cupy.stand_in", reason="the stand-in has a device for each rank")

    def body(t):
        with connected(t) as (gpus, _):
            return counted_step(gpus, stage)

    staged, by_nccl = simulate(n, counted_step, stage), simulate(n, body)
    (waits, uploads), _, _ = by_nccl[0]
    assert not waits and not [place for place in uploads if not place.startswith("ops/")]
    for (*_, a), (*_, b) in zip(staged, by_nccl, strict=True):
        for x, y in zip(a, b, strict=True):  # three ranks' sums in another order, Adam's division
            np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-4)
