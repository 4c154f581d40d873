"""A small training for the tests of elastic runs: steps by number, each sample once, dropout."""

import os
import signal

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm.grid import Grid
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.model.cut import cut
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import one_f_one_b
from tests.devices import host
from tests.on_device import place, there
from tests.parallel.model import tiny

GRID = dict(tp=2, pp=2)  # of 4 ranks
STAGES = {"dp": DataParallel, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
N_SAMPLES = 24  # in a step: equal shares on 1, 2, 3, 4, 6, 8 ranks, unequal ones on 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(),
                                    nn.Dropout(0.25), nn.Linear(16, 5), nn.Linear(5, 3))

    def forward(self, x):
        return self.layers(x)


def state_of(stage, **axes):
    """The `state` of a stage; "grid": a GPT on `axes`, GRID unless given."""
    def state(t):
        minidl.manual_seed(3)
        if stage == "grid":
            return on_grid(Grid(t, **(axes or GRID)))
        model = STAGES[stage](there(Net()), t)
        minidl.manual_seed(100 + t.rank)  # each rank drops its own
        leaves = model.parameters() if stage == "dp" else model.shards()
        optimizer = optim.AdamW(leaves, lr=0.02)
        return {"model": model, "optimizer": optimizer,
                "scheduler": optim.lr_scheduler.StepLR(optimizer, 3, 0.5)}
    return state


def on_grid(grid):
    pp, zero = grid.pp.size, int(grid.dp.size > 1)
    gpt = parallelize(there(tiny.gpt(dropout=0.2, tied=not zero)), grid)
    minidl.manual_seed(100, grid.dp.rank)
    model = Pipeline(grid.pp, cut(gpt, pp), loss_of, one_f_one_b(pp, 2), dp=grid.dp, zero=zero) \
        if pp > 1 else Zero2(gpt, grid.dp)
    optimizer = optim.AdamW(model.shards() if zero else model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer,
            "scheduler": optim.lr_scheduler.StepLR(optimizer, 3, 0.5)}


def loss_of(logits, target):
    return F.cross_entropy(logits.reshape(-1, tiny.VOCAB), target.reshape(-1))


def batch(t, step):
    """This rank's share of the step's samples, and their numbers."""
    mine = np.arange(step * N_SAMPLES, (step + 1) * N_SAMPLES)[t.rank::t.size]
    x = np.sin(mine[:, None] * np.arange(1, 7) * 0.7).astype(np.float32)
    return mine, place(x), place(mine % 3)


def train(t, step, model, optimizer, scheduler):
    _, x, y = batch(t, step)
    if isinstance(model, Pipeline):
        model.step(*map(place, tiny.batch(step, n=4)))
    elif isinstance(model.module, nn.GPT):
        x, y = map(place, tiny.batch(step * 10 + model.t.rank, n=4))
        loss_of(model(x), y).backward()
    else:
        model.train()
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if isinstance(model, Zero1) or getattr(model, "zero", 0):
        model.gather()
    scheduler.step()


def weights(named):
    """All weights and buffers, as bytes that are equal where the bits are; of a grid the rank's."""
    model = named["model"]
    if isinstance(model, Pipeline):
        return {name: host(p.array).tobytes() for p, name in model.names.items()}
    return {key: host(array).tobytes() for key, array in named["model"].state_dict().items()}


def die():
    os.kill(os.getpid(), signal.SIGKILL)
