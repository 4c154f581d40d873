"""Pairs of techniques that no test of their own has: a small GPT on two ranks, divided in each of
the ways of `WAYS`, trains with recompute, a profile, offload, accumulation, autocast and halves as
without; and is restarted, healed and loaded elsewhere to the same bits.

tests/test_together.py holds docs/together.md against these tests and the others."""

import os
import shutil
import zlib
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from functools import cache, partial

import numpy as np
import pytest

import minidl
from minidl import amp, elastic, nn, optim, snapshot
from minidl.comm import codec, ring, simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.elastic import buddy
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel import (
    DGC, Compressed, DataParallel, DiLoCo, ErrorFeedback, LocalSGD, Offload, OneBitAdam, PowerSGD,
    SyncBatchNorm, Zero1, Zero2, Zero3,
)
from minidl.parallel.data.data_parallel import average_gradients
from minidl.parallel.model.context import context_parallel
from minidl.parallel.model.cut import cut
from minidl.parallel.model.experts import expert_parallel, expert_parameters
from minidl.parallel.model.parallelize import Heads, parallelize, whole_state_dict
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from minidl.parallel.model.tensor import whole
from minidl.parallel.server.rules import SYNC
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from tests.conftest import EVERY

V, TOKENS, ROWS, STEPS = 11, 8, 4, 3
STAGES = {"ZeRO 1": Zero1, "ZeRO 2": Zero2, "ZeRO 3": Zero3}
LOCAL = {"local SGD": LocalSGD, "DiLoCo": DiLoCo}
WRAPPERS = {
    "data parallelism": DataParallel, **STAGES,
    "compression": lambda model, t: Compressed(model, t, PowerSGD(2, min_compression_rate=1)),
    "SyncBatchNorm": lambda model, t: DataParallel(SyncBatchNorm.convert(model, t), t),
    "experts": lambda model, t: DataParallel(expert_parallel(model, t), t),
}
WAYS = [*WRAPPERS, *LOCAL, "tensor", "sequence", "pipeline", "context"]
ALL = [*WAYS, "parameter server"]


class Normed(nn.Module):
    """A transformer's place for batch norm: between two layers of every token's own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.Tanh())])
        self.token, self.norm = nn.Embedding(V, 16), nn.BatchNorm1d(16)
        self.head = nn.Linear(16, V)

    def forward(self, ids):
        x = self.blocks[0](self.token(ids)).reshape(-1, 16)
        return self.head(self.norm(x)).reshape(*ids.shape, V)


class EveryToken(nn.Module):
    """Batch norm of x (B, T, C) over all tokens."""

    def __init__(self, width):
        super().__init__()
        self.each = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.each(x.reshape(-1, x.shape[-1])).reshape(x.shape)


def made(way, normed=False):
    minidl.manual_seed(3)
    if way == "SyncBatchNorm":
        return Normed()
    options = {"feed_forward": partial(nn.MoE, n_experts=4, top_k=2, capacity_factor=None)}
    net = nn.GPT(V, TOKENS, 2, 4, 16, tied=False, **options if way == "experts" else {})
    if normed:
        net.norm = EveryToken(16)
    return net


def batch(step):
    ids = np.random.default_rng([5, step]).integers(0, V, (ROWS, TOKENS + 1))
    return ids[:, :-1], ids[:, 1:]


class Run:
    """One rank's training in a way, and with what the words of `how` say."""

    def __init__(self, t, way, how=""):
        self.t, self.way, self.share = t, way, 1.0
        self.how = how = how.split()
        self.net = net = made(way)
        if "recompute" in how:
            for block in net.blocks:
                block.forward = partial(recompute, block.forward)
        if "halves" in how:
            amp.prepare(net, "O2")
        self.part = lambda a: a
        if way in WRAPPERS:
            self.part = lambda a: np.array_split(a, t.size)[t.rank]
            self.model = WRAPPERS[way](net, t)
        elif way in ("tensor", "sequence"):
            self.model = parallelize(net, Grid(t, tp=t.size), sequence=way == "sequence")
        elif way == "pipeline":
            self.model = Pipeline(t, cut(net, t.size), self.loss, one_f_one_b(t.size, 2))
        elif way == "context":
            self.part = context_parallel(net, t)
            self.model = DataParallel(net, t)
        else:
            self.part = lambda a: np.array_split(a, t.size)[t.rank]
            self.model = net
        leaves = self.model.shards() if way in STAGES else self.model.parameters()
        self.optimizer = inner = optim.SGD(leaves, lr=0.2, momentum=0.5)
        self.scaler = amp.GradScaler(256.0, enabled="halves" in how and way != "compression")
        if "halves" in how and "offload" not in how:
            optim.use_master_weights(inner)
        if "offload" in how:  # it makes masters itself
            self.optimizer = Offload(inner, bucket_bytes=100)
        if way in LOCAL:
            self.model = LOCAL[way](net, t, self.optimizer, period=2)
        self.parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}

    def loss(self, logits, y):
        return F.cross_entropy(logits.reshape(-1, V).float(), y.reshape(-1)) * self.share

    def backward(self, x, y):
        if self.way == "pipeline":
            self.model.step(x, y, self.scaler)
        else:
            self.scaler.scale(self.loss(self.model(x), y)).backward()

    def step(self, number):
        x, y = map(self.part, batch(number))
        with amp.autocast(enabled="autocast" in self.how):
            if "accumulation" in self.how:
                self.share, half = 0.5, len(x) // 2
                with getattr(self.model, "no_sync", nullcontext)():
                    self.backward(x[:half], y[:half])
                x, y = x[half:], y[half:]
            self.backward(x, y)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for parts in (self.optimizer, self.model):
            getattr(parts, "zero_grad", lambda: None)()
        if self.way in STAGES:
            self.model.gather()
        if self.way in LOCAL:
            self.model.step()

    def weights(self):
        """Copies of the weights that this rank has; it trains no more."""
        for parts in (self.optimizer, self.model):
            getattr(parts, "close", lambda: None)()
        params = (self.model if self.way == "pipeline" else self.net).parameters()
        return [p.data.copy() for p in params]


def served(t, how):
    """The same of a parameter server, rank 0, and a worker."""
    net, scaler = made(""), amp.GradScaler(enabled=False)
    if how == "recompute":
        for block in net.blocks:
            block.forward = partial(recompute, block.forward)
    params = list(net.parameters())
    if t.rank == 0:
        Server(t, params, 1, SYNC, lambda shard: optim.SGD(shard, lr=0.2, momentum=0.5)).serve()
        return [p.data.copy() for p in params]
    with Worker(t, params) as worker:
        for step in range(STEPS):
            worker.pull()
            x, y = batch(step)
            shares = [slice(2), slice(2, 4)] if how == "accumulation" else [slice(4)]
            for rows in shares:
                with amp.autocast(enabled=how == "autocast"):
                    loss = F.cross_entropy(net(x[rows]).reshape(-1, V).float(), y[rows].reshape(-1))
                scaler.scale(loss / len(shares)).backward()
            worker.push(len(x))
        worker.pull()
    return [p.data.copy() for p in params]


@contextmanager
def profiled(t, how, *kinds):
    """A profile of all ranks, if `how` says so; such spans are then in this rank's."""
    with minidl.profile(t) if "profile" in how else nullcontext() as p:
        yield
    if p is not None:
        assert {kind for lane in p.record.lanes.values() for kind, *_ in lane} >= {*kinds}


def trained(t, way, how=""):
    with profiled(t, how, *["forward"] if way != "parameter server" or t.rank else []):
        if way == "parameter server":
            return served(t, how)
        run = Run(t, way, how)
        for step in range(STEPS):
            run.step(step)
        return run.weights()


@cache
def plain(way, how=""):
    return simulate(2, trained, way, how)


def compare(way, how, without="", **tolerance):
    for mine, want in zip(simulate(2, trained, way, how), plain(way, without), strict=True):
        for a, b in zip(mine, want, strict=True):
            np.testing.assert_allclose(a, b, **tolerance, err_msg=f"{way}, {how}")


whole_form = pytest.mark.skipif(not EVERY, reason="some seconds: make test-every")


def few(rows, name):
    """All of them in the whole form; in `make test` one of so many, another for another test."""
    return rows if EVERY else rows[zlib.crc32(name.encode()) % len(rows):][:1]


def test_the_weights_move_and_depend_on_the_way():
    """Negative control: what is compared below is no standstill."""
    before = [p.data for p in made("").parameters()]
    assert any(abs(a - b).max() > 0.01 for a, b in zip(plain("data parallelism")[0], before))
    assert any(abs(a - b).max() > 1e-4 for a, b in zip(plain("data parallelism")[0],
                                                       plain("local SGD")[0]))


@pytest.mark.parametrize("how", ["recompute", "profile"])
def test_with_recompute_or_a_profile_the_bits_are_the_same(how):
    for way in few(ALL, how):
        compare(way, how, rtol=0, atol=0)


def test_with_the_optimizer_on_the_host_the_bits_are_the_same():
    for way in few(WAYS, "offload"):
        if way != "local SGD":  # which refuses it
            compare(way, "offload", rtol=0, atol=0)


def test_two_half_batches_are_one():
    for way in few(ALL, "halves of batches"):
        if way != "SyncBatchNorm":  # whose statistics are those of a half; it has its own test
            compare(way, "accumulation", rtol=1e-4, atol=2e-6)  # float32 sums in another order


@pytest.mark.parametrize("how", ["autocast", "halves"])
def test_in_two_bytes_the_weights_are_nearly_the_same(how):
    for way in few(ALL if how == "autocast" else [way for way in WAYS if way != "DiLoCo"], how):
        compare(way, how, rtol=0, atol=2e-2)  # fp16 products, in gradients taken times 0.2


@whole_form
@pytest.mark.parametrize("how", ["recompute", "profile", "offload"])
def test_of_two_such_words_each_changes_no_bit(how):
    for other in ("autocast", "halves", "accumulation", "offload", "recompute"):
        if other != how:
            compare("data parallelism", f"{how} {other}", other, rtol=0, atol=0)


@whole_form
@pytest.mark.parametrize("how", ["autocast", "halves"])
def test_two_half_batches_in_two_bytes(how):
    compare("data parallelism", f"accumulation {how}", how, rtol=0, atol=2e-2)


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
        state = {name: array.copy() for name, array in whole_state_dict(net).items()}
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


@cache
def alone(way, normed=False):
    """The model of one rank, with its gradients."""
    net, (x, y) = made(way, normed), batch(0)
    entropy(net(x), y).backward()
    return net


def whole_gradients(way, normed=False):
    return {name: p.grad for name, p in alone(way, normed).named_parameters()}


def entropy(logits, y):
    return F.cross_entropy(logits.reshape(-1, V), y.reshape(-1))


def assert_whole(named, way="", normed=False):
    """These parameters have the gradients of one rank, but for roundings of float32."""
    want = whole_gradients(way, normed)
    for name, p in named:
        np.testing.assert_allclose(whole(p, p.grad), want[name], rtol=1e-4, atol=1e-6, err_msg=name)


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
        assert_whole(((name, p) for p, name in names.items() if p.own), inner)
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
            np.testing.assert_allclose(net.state_dict()[name], want.data, rtol=1e-5, atol=1e-7)
        model.close()

    simulate(4 if inner == "tensor" else 2, body)


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
            found.append([net.norm.running_mean.data.tobytes(), net.head.weight.data.tobytes()])
            model.step()
        found.append([b"", net.head.weight.data.tobytes()])
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
    want = {name: p.grad for name, p in alone.named_parameters()}

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


# -- a run that ends, and goes on


def killed(way, how, folder, at=None):
    """All ranks' weights after an elastic run, whose rank 1 dies in step `at`."""
    def body(t):
        runs = []

        def state(t):
            runs.append(Run(t, way, how))
            return runs[-1].parts

        def train(t, step, **parts):
            if (t.rank, step) == (1, at):
                raise ZeroDivisionError
            runs[-1].step(step)

        with profiled(t, how, "forward", "snapshot"):
            elastic.run(train, state, 6, folder, 2, t)
        return runs[-1].weights()

    return simulate(2, body)


WITH = [("data parallelism", how) for how in ("offload", "recompute", "autocast", "halves",
                                              "accumulation", "profile")]


@whole_form
def test_a_run_that_is_started_again_ends_in_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    cases = [(way, "") for way in ("tensor", "sequence", "context", "experts", "SyncBatchNorm")]
    for way, how in [*cases, *WITH]:
        whole, again = killed(way, how, tmp_path / "whole"), tmp_path / "again"
        with pytest.raises(RankFailed):
            killed(way, how, again, at=4)
        assert snapshot.latest(again) is not None
        for mine, want in zip(killed(way, how, again), whole, strict=True):
            for a, b in zip(mine, want, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{way}, {how}")
        for folder in (again, tmp_path / "whole"):
            shutil.rmtree(folder)


def healed(way, how=""):
    """All ranks' weights after STEPS steps, of which rank 1 has died in the last: a new process
    has its place."""
    copied = {}

    def before(t):
        run = Run(t, way, how)
        copied[t.rank] = buddy.Buddies(t, run.parts)
        for step in range(STEPS):
            copied[t.rank].save(step)
            run.step(step)
        copied[t.rank].settle()

    def after(t):
        run = Run(t, way, how)
        mine = copied[0] if t.rank == 0 else None
        with profiled(t, how, "forward"):
            buddy.restore(t, mine, reports, chosen, run.parts)
            for step in range(chosen[1], STEPS):
                run.step(step)
        return run.weights()

    simulate(2, before)
    reports = [[copied[0].report()], []]
    chosen = buddy.choose(reports)
    assert chosen[1] == STEPS - 1
    copied[0].let_go(chosen[1])
    return simulate(2, after)


def test_a_rank_that_is_replaced_has_changed_nothing():
    cases = [(way, "") for way in ("sequence", "context", "experts", "compression",
                                   "SyncBatchNorm")]
    for way, how in few([*cases, *WITH], "replaced"):
        for mine, want in zip(healed(way, how), plain(way, how), strict=True):
            for a, b in zip(mine, want, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{way}, {how}")


def test_one_rank_loads_what_two_have_saved(tmp_path):
    def write(t, way, how, folder):
        run = Run(t, way, how)
        run.step(0)
        with profiled(t, how, "snapshot"):
            snapshot.save(folder, 1, t, **run.parts)
        state = {name: array.copy() for name, array in whole_state_dict(run.net).items()}
        run.weights()
        return state

    cases = [("sequence", ""), ("context", ""), ("SyncBatchNorm", "")]
    for way, how in few([*cases, *WITH], "loaded"):
        folder = tmp_path / f"{way} {how}"
        want, alone = simulate(2, write, way, how, folder)[0], made(way)
        if how == "halves":
            amp.prepare(alone, "O2")
        assert snapshot.load(folder, model=alone) == 1
        for name, array in alone.state_dict().items():
            np.testing.assert_array_equal(array, want[name], err_msg=f"{way}, {how}: {name}")


# -- what is refused


def test_replicas_that_differ_want_whole_weights():
    def body(t):
        for way in ("tensor", "sequence", "pipeline", "experts"):
            model = expert_parallel(made(way), t) if way == "experts" else Run(t, way).model
            for wrap in LOCAL.values():
                with pytest.raises(TypeError, match="wants whole weights on every rank"):
                    wrap(model, t, optim.SGD(model.parameters(), lr=0.1), period=2)

    simulate(2, body)


def test_replicas_that_differ_want_the_plain_model():
    def body(t):
        for way in ("data parallelism", "ZeRO 1", "ZeRO 2", "ZeRO 3", "compression"):
            wrapped = WRAPPERS[way](made(""), t)
            leaves = list(wrapped.shards() if way in STAGES else wrapped.parameters())
            for wrap in (LocalSGD, DiLoCo):
                with pytest.raises(TypeError, match="wants the plain model; got a"):
                    wrap(wrapped, t, optim.SGD(leaves, lr=0.1), period=2)
            wrapped.close()

    simulate(2, body)


@pytest.mark.parametrize("inner", ["SyncBatchNorm", "experts"])
def test_weights_that_see_a_block_of_the_tokens_alone_are_refused(inner):
    def body(t):
        t, net = Ledger(t), made(inner if inner == "experts" else "", normed=True)
        grid = Grid(t, tp=2)
        if inner == "experts":
            net.norm = nn.LayerNorm(16)
            expert_parallel(net, t)
        else:
            SyncBatchNorm.convert(net, t)
        sent = t.bytes_sent, grid.tp.bytes_sent
        with pytest.raises(TypeError, match="with sequence parallelism each rank has a block of"):
            parallelize(net, grid, {"blocks.*.attention": partial(Heads, seq=1)})
        assert (t.bytes_sent, grid.tp.bytes_sent) == sent

    simulate(2, body)


def test_experts_beside_a_method_with_momentum_want_an_optimizer_of_their_own():
    """With one both train; an optimizer of all weights would give the experts none."""
    def body(t):
        net, (x, y) = expert_parallel(made("experts"), t), batch(0)
        model = Compressed(net, t, DGC(momentum=0.5, min_size=0))
        entropy(model(x), y).backward()
        with pytest.raises(ValueError, match="the gradients of divided experts have none"):
            optim.SGD(net.parameters(), lr=0.1).step()
        own = expert_parameters(net)
        before = [p.data.copy() for p in own]
        optim.SGD([p for p in net.parameters() if not p.own], lr=0.1).step()
        optim.Adam(own, lr=0.1).step()
        assert all(abs(p.data - b).max() > 0.01 for p, b in zip(own, before, strict=True))
        model.close()

    simulate(2, body)
