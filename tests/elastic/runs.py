"""Small training runs of every kind, for elastic.run: the same in the simulator and under MPI."""

import hashlib

import numpy as np

import minidl
from minidl import nn, optim
from minidl.data import ArrayDataset, DataLoader, DistributedSampler, Passes
from minidl.nn import functional as F
from minidl.optim.lr_scheduler import StepLR
from minidl.parallel import DGC, Compressed, DataParallel, DiLoCo, LocalSGD, Zero1, Zero2, Zero3
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from minidl.precision.amp import GradScaler

STAGES = {"dp": DataParallel, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
KINDS = [*STAGES, "scaler", "dgc", "local", "diloco", "pipeline"]
N, B = 60, 12  # samples; of a step, over all ranks: 5 steps an epoch


def data():
    x = np.random.default_rng(0).standard_normal((N, 6)).astype(np.float32)
    return ArrayDataset(x, (x.sum(1) > 0).astype(np.int64), np.arange(N))


def net(dropout=True):
    minidl.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7) if dropout else nn.Tanh(),
                         nn.Dropout(0.2 if dropout else 0.0), nn.Linear(7, 5), nn.Tanh(),
                         nn.Linear(5, 2))


def state(kind):
    """The function `state` of elastic.run."""

    def build(t):
        if kind == "pipeline":
            model = Pipeline(t, cut(net(dropout=False), t.size), F.cross_entropy,
                             one_f_one_b(t.size, 3))
            optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        elif kind in ("local", "diloco"):
            optimizer = optim.SGD((inner := net()).parameters(), lr=0.1, momentum=0.9)
            model = (LocalSGD(inner, t, optimizer, period=3, start=2) if kind == "local" else
                     DiLoCo(inner, t, optimizer, period=4, fragments=2, delay=1))
        elif kind == "dgc":
            model = Compressed(net(), t, DGC(0.9, sparsity=0.8, min_size=10), bucket_bytes=100)
            optimizer = optim.SGD(model.parameters(), lr=0.1)
        else:
            model = STAGES.get(kind, DataParallel)(net(), t)
            leaves = model.shards() if kind.startswith("zero") else model.parameters()
            optimizer = optim.AdamW(leaves, lr=1e-2)
        minidl.manual_seed(4, t.rank)  # dropout differs between ranks
        rank, size = (0, 1) if kind == "pipeline" else (t.rank, t.size)
        if B % size:
            raise ValueError(f"{B} samples a step do not divide among {size} ranks")
        sampler = DistributedSampler(N, rank, size, seed=5)
        found = {"model": model, "optimizer": optimizer,
                 "scheduler": StepLR(optimizer, step_size=7, gamma=0.5),
                 "batches": Passes(DataLoader(data(), B // size, sampler, prefetch=0))}
        return found | ({"scaler": GradScaler(init_scale=2.0**20, growth_interval=3)}
                        if kind == "scaler" else {})

    return build


def step(t, number, model, optimizer, scheduler, batches, scaler=None, seen=None):
    """One step; seen: a list for the numbers of the samples used."""
    x, y, which = next(batches)
    if seen is not None:
        seen.append((number, which.tolist()))
    if isinstance(model, Pipeline):
        model.step(x, y)
    else:
        loss = F.cross_entropy(model(x), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    if isinstance(model, (LocalSGD, DiLoCo)):
        model.step()
    if isinstance(model, Zero1):
        model.gather()
    scheduler.step()


def digest(model):
    """A checksum of this rank's weights and, on rank 0, of the buffers, which are rank 0's."""
    rank = model.t.rank
    model = model.module if isinstance(model, DiLoCo) else model
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if rank and ("running" in name or "batches" in name):
            continue
        found.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()
