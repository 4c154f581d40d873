"""Pairs of techniques that both divide a model, or add up over its ranks: replicas and stages of a
divided model, two divisions at once, compressed gradients, batch norm; all as on one rank.

tests/test_together.py holds docs/together.md against these tests and the others."""

from collections import defaultdict
from contextlib import nullcontext

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import codec, ring, simulate
from minidl.comm.grid import Grid
from minidl.nn import functional as F
from minidl.parallel import (
    DGC, Compressed, DataParallel, DiLoCo, ErrorFeedback, LocalSGD, OneBitAdam, PowerSGD,
    SyncBatchNorm,
)
from minidl.parallel.data.data_parallel import average_gradients
from minidl.parallel.model.context import context_parallel
from minidl.parallel.model.cut import cut
from minidl.parallel.model.experts import expert_parallel
from minidl.parallel.model.parallelize import Heads, parallelize, whole_state_dict
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from tests.conftest import whole_form
from tests.parallel.pairs import (
    LOCAL, STAGES, V, alone, assert_whole, batch, entropy, few, made, whole_gradients,
)

# -- replicas of a model that is divided itself


def replicas(t, outer, inner=""):
    """All weights after two rounds of two steps; `outer` over pairs of ranks, each model divided by
    `inner`."""
    grid = Grid(t, dp=2, **{"cp" if inner == "context" else "tp": t.size // 2})
    net, part = made(""), lambda a: np.array_split(a, 2)[grid.dp.rank]
    if inner == "context":
        of_text = context_parallel(net, grid.cp)
    elif inner:
        parallelize(net, grid, sequence=inner == "sequence")
    model = OUTER[outer](net, grid.dp) if outer in OUTER else net
    leaves = model.shards() if outer in STAGES else model.parameters()
    optimizer = optim.SGD(leaves, lr=0.2, momentum=0.5)
    if outer in LOCAL:
        model = LOCAL[outer](net, grid.dp, optimizer, period=2)
    for step in range(4):
        x, y = map(part, batch(step))
        if inner == "context":
            x, y = of_text(x), of_text(y)
        F.cross_entropy(model(x).reshape(-1, V), y.reshape(-1)).backward()
        if inner == "context":
            average_gradients(grid.cp, net.parameters())
        optimizer.step()
        optimizer.zero_grad()
        if outer in LOCAL:
            model.step()
        elif outer in STAGES:
            model.gather()
    with model.gathered() if outer in STAGES else nullcontext():
        state = {name: x.array.copy() for name, x in whole_state_dict(net).items()}
    model.close()
    return state


# a method that rounds: of a slice a matrix of low rank is another than of the whole
OUTER = {**STAGES, "compression": lambda model, t: Compressed(model, t, ErrorFeedback(codec.FP16))}


@whole_form
@pytest.mark.parametrize("inner", ["sequence", "tensor", "context"])
def test_replicas_of_a_divided_model_are_those_of_a_whole_one(inner):
    """Float32 sums in another order; of 16 bits, roundings of other sums."""
    for outer in LOCAL if inner == "context" else OUTER:
        want = simulate(2, replicas, outer)[0]
        for state in simulate(4, replicas, outer, inner):
            for name, array in state.items():
                np.testing.assert_allclose(array, want[name], err_msg=f"{outer}, {inner}: {name}",
                                           rtol=0, atol=2e-3 if outer == "compression" else 2e-5)


@pytest.mark.parametrize("inner", ["sequence", "context", "experts"])
def test_stages_of_a_divided_model_have_the_gradients_of_one_rank(inner):
    def body(t):
        axis = {"sequence": "tp", "context": "cp", "experts": "dp"}[inner]
        grid, net = Grid(t, pp=2, **{axis: 2}), made(inner)
        x, y = batch(0)
        if inner == "sequence":
            parallelize(net, grid, sequence=True)
        elif inner == "context":
            x, y = map(context_parallel(net, grid.cp), (x, y))
        else:
            expert_parallel(net, grid.dp)
            x, y = (np.array_split(a, 2)[grid.dp.rank] for a in (x, y))
        dp = None if inner == "sequence" else getattr(grid, axis)
        pipe = Pipeline(grid.pp, cut(net, 2), entropy, one_f_one_b(2, 2), dp=dp)
        pipe.step(x, y)
        assert_whole(((name, p) for p, name in pipe.names.items()), inner)
        pipe.close()

    simulate(4, body)


def test_heads_and_experts_divided_at_once():
    """The attention over pairs of ranks, the experts over the others, with a plan of its own."""
    def body(t):
        grid, net = Grid(t, dp=2, tp=2), made("experts")
        parallelize(net, grid, {"blocks.*.attention": Heads})
        model = DataParallel(expert_parallel(net, grid.dp), grid.dp)
        x, y = (np.array_split(a, 2)[grid.dp.rank] for a in batch(0))
        entropy(model(x), y).backward()
        assert_whole(net.named_parameters(), "experts")
        model.close()

    simulate(4, body)


def test_texts_divided_twice():
    """Into parts whose attention goes around a ring, and each into blocks between the regions."""
    def body(t):
        grid, net = Grid(t, cp=2, tp=2), made("")
        x, y = map(context_parallel(net, grid.cp), batch(0))
        parallelize(net, grid, sequence=True)
        entropy(net(x), y).backward()
        average_gradients(grid.cp, net.parameters())
        assert_whole(net.named_parameters())

    simulate(4, body)


METHODS = {"DGC": lambda: DGC(momentum=0, sparsity=0.9, min_size=0),
           "PowerSGD": lambda: PowerSGD(1), "1-bit Adam": lambda: OneBitAdam(warm_up_steps=1)}


@pytest.mark.parametrize("inner", ["context", "experts"])
def test_what_arrived_and_what_is_owed_are_the_gradients_of_one_rank(inner):
    """After two backwards of one batch, compressed: 2 g, of 1-bit Adam's momentum (0.9 + 1) 0.1 g.
    Experts have their whole gradients, which no method touches."""
    def body(t, method):
        net, (x, y) = made(inner), batch(0)
        if inner == "context":
            x, y = map(context_parallel(net, t), (x, y))
        else:
            expert_parallel(net, t)
            x, y = (np.array_split(a, 2)[t.rank] for a in (x, y))
        model, names = Compressed(net, t, METHODS[method]()), dict(net.named_parameters())
        names, arrived = {p: name for name, p in names.items()}, defaultdict(float)
        for _ in range(2):
            net.zero_grad()
            entropy(model(x), y).backward()
            for p in names:
                arrived[p] = arrived[p] + p.grad
        assert_whole(((name, p) for p, name in names.items() if p.is_local), inner)
        owed = 0.0
        for bucket in model.reducer.buckets:
            for p, rest in zip(bucket.params, bucket.views_of("residual"), strict=True):
                rest, total, times = ring.all_reduce(t, rest.copy()), arrived[p], 2
                if method == "1-bit Adam":
                    total, times = bucket.common["exp_avg"][p], 0.19
                np.testing.assert_allclose(
                    total + rest, times * whole_gradients(inner)[names[p]], rtol=1e-4, atol=2e-6,
                    err_msg=names[p])
                owed += abs(rest).max()
        assert owed > 1e-3  # else nothing was compressed
        model.close()

    for method in few([*METHODS], inner):
        simulate(2, body, method)


# -- batch norm over all ranks


@pytest.mark.parametrize("inner", ["tensor", "context", "experts"])
def test_batch_norm_over_the_ranks_of_a_divided_model_is_that_of_one_rank(inner):
    """Between replicas of a model in slices; over parts of a text; beside divided experts."""
    def body(t):
        grid = Grid(t, dp=2, tp=2) if inner == "tensor" else Grid(t, dp=2)
        net, (x, y) = made(inner, normed=True), batch(0)
        if inner == "tensor":
            parallelize(net, grid)
        elif inner == "context":
            x, y = map(context_parallel(net, grid.dp), (x, y))
        else:
            expert_parallel(net, grid.dp)
        if inner != "context":
            x, y = (np.array_split(a, 2)[grid.dp.rank] for a in (x, y))
        model = DataParallel(SyncBatchNorm.convert(net, grid.dp), grid.dp)
        entropy(model(x), y).backward()
        assert_whole(net.named_parameters(), inner, normed=True)
        for name, want in alone(inner, normed=True).named_buffers():
            np.testing.assert_allclose(net.state_dict()[name], want.array, rtol=1e-5, atol=1e-7)
        model.close()

    simulate(4 if inner == "tensor" else 2, body)


def test_batch_norm_over_ranks_with_the_same_samples_counts_them_twice():
    """As its docstring says: the group is to be that of the samples, not all ranks of the grid."""
    def body(t, whole_grid):
        grid, x = Grid(t, dp=2, tp=2), np.random.default_rng(0).normal(size=(6, 3))
        norm = SyncBatchNorm(3, t=t if whole_grid else grid.dp).double()
        y = norm(np.array_split(x, 2)[grid.dp.rank])
        return y.array, norm.running_var.array

    alone = nn.BatchNorm1d(3).double()
    want = alone(np.random.default_rng(0).normal(size=(6, 3))).array
    for whole_grid in (False, True):
        y, variance = simulate(4, body, whole_grid)[0]
        np.testing.assert_allclose(y, want[:3], rtol=1e-12)
        batch = (alone.running_var.array - 0.9) * (5 / 6 * 12 / 11 if whole_grid else 1)
        np.testing.assert_allclose(variance, 0.9 + batch, rtol=1e-12)


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_statistics_are_those_of_all_ranks_though_replicas_differ(kind):
    def body(t, sync):
        net = SyncBatchNorm.convert(made("SyncBatchNorm"), t) if sync else made("SyncBatchNorm")
        optimizer = optim.SGD(net.parameters(), lr=0.2)
        model, found = kind(net, t, optimizer, period=2), []
        for step in range(4):
            x, y = (np.array_split(a, 2)[t.rank] for a in batch(step))
            entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append([net.norm.running_mean.array.tobytes(), net.head.weight.array.tobytes()])
            model.step()
        found.append([b"", net.head.weight.array.tobytes()])
        model.close()
        return found

    for sync in (True, False):
        first, second = simulate(2, body, sync)
        alike = [a == b for a, b in zip(first[2], second[2], strict=True)]  # within a round
        assert alike == [sync, False] and first[-1] == second[-1]


def test_statistics_of_replicas_of_a_stage_and_of_what_is_compressed():
    def stages(t, n):
        minidl.manual_seed(3)
        net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        return (SyncBatchNorm.convert(net, t) if n else net), np.random.default_rng(0).normal(
            size=(8, 5)).astype("f4"), np.arange(8) % 3

    alone, x, y = stages(None, 0)
    for micro in range(2):  # of both ranks' parts the first halves, and the second ones
        rows = np.r_[2 * micro:2 * micro + 2, 4 + 2 * micro:6 + 2 * micro]
        (F.cross_entropy(alone(x[rows]), y[rows]) / 2).backward()
    want = {name: p.grad.array for name, p in alone.named_parameters()}

    def piped(t):
        grid = Grid(t, pp=2, dp=2)
        net, x, y = stages(grid.dp, 2)
        pipe = Pipeline(grid.pp, cut(net, 2), F.cross_entropy, one_f_one_b(2, 2), dp=grid.dp)
        pipe.step(*(np.array_split(a, 2)[grid.dp.rank] for a in (x, y)))
        for p, name in pipe.names.items():
            np.testing.assert_allclose(p.grad, want[name], rtol=1e-4, atol=1e-6, err_msg=name)
        pipe.close()

    def compressed(t):
        net, x, y = stages(t, 2)
        model = OUTER["compression"](net, t)
        for micro in range(2):
            with model.no_sync() if not micro else nullcontext():
                rows = slice(4 * t.rank + 2 * micro, 4 * t.rank + 2 * micro + 2)
                (F.cross_entropy(model(x[rows]), y[rows]) / 2).backward()
        for name, p in net.named_parameters():
            np.testing.assert_allclose(p.grad, want[name], atol=2e-3, err_msg=name)
        model.close()

    simulate(4, piped)
    simulate(2, compressed)
