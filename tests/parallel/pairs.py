"""A small GPT on two ranks, divided in each of the ways of `WAYS`, and trained with what the words
of `how` say. Used by: test_pairs.py, test_pairs_divided.py, test_pairs_saved.py
"""

import zlib
from contextlib import contextmanager, nullcontext
from functools import cache, partial

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel import (
    Compressed, DataParallel, DiLoCo, LocalSGD, Offload, PowerSGD, SyncBatchNorm, Zero1, Zero2,
    Zero3,
)
from minidl.parallel.model.context import context_parallel
from minidl.parallel.model.cut import cut
from minidl.parallel.model.experts import expert_parallel
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from minidl.parallel.model.tensor import whole
from minidl.parallel.server.rules import SYNC
from minidl.parallel.server.server import Server
from minidl.parallel.server.worker import Worker
from minidl.precision import amp
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
WITH = [("data parallelism", how) for how in ("offload", "recompute", "autocast", "halves",
                                              "accumulation", "profile")]


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
        self.scaler = amp.GradScaler(
            init_scale=256.0, enabled="halves" in how and way != "compression")
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
        return [p.array.copy() for p in params]


def served(t, how):
    """The same of a parameter server, rank 0, and a worker."""
    net, scaler = made(""), amp.GradScaler(enabled=False)
    if how == "recompute":
        for block in net.blocks:
            block.forward = partial(recompute, block.forward)
    params = list(net.parameters())
    if t.rank == 0:
        Server(t, params, 1, SYNC, lambda shard: optim.SGD(shard, lr=0.2, momentum=0.5)).serve()
        return [p.array.copy() for p in params]
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
    return [p.array.copy() for p in params]


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


def few(rows, name):
    """All of them in the whole form; in `make test` one of so many, another for another test."""
    return rows if EVERY else rows[zlib.crc32(name.encode()) % len(rows):][:1]


@cache
def alone(way, normed=False):
    """The model of one rank, with its gradients."""
    net, (x, y) = made(way, normed), batch(0)
    entropy(net(x), y).backward()
    return net


def whole_gradients(way, normed=False):
    return {name: p.grad.array for name, p in alone(way, normed).named_parameters()}


def entropy(logits, y):
    return F.cross_entropy(logits.reshape(-1, V), y.reshape(-1))


def assert_whole(named, way="", normed=False):
    """These parameters have the gradients of one rank, but for roundings of float32."""
    want = whole_gradients(way, normed)
    for name, p in named:
        np.testing.assert_allclose(whole(p, p.grad), want[name], rtol=1e-4, atol=1e-6, err_msg=name)
