"""What the tests of ZeRO train: a network with every kind of weight, on uneven shares."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring_blocks
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.optim import lr_scheduler
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.data.bucket import Bucket
from tests.devices import host
from tests.on_device import place, there

STAGES = {1: Zero1, 2: Zero2, 3: Zero3}
SIZES = (1, 2, 3, 4, 5)  # and 8 where float32 has the bits of data parallelism
each_stage = pytest.mark.parametrize("stage", [1, 2, 3])


class Block(nn.Module):
    """Weights of 49, 7, 1, 3 and 7 elements: used, used, used, never used, frozen."""

    def __init__(self, again):
        super().__init__()
        self.again = again
        self.linear = nn.Linear(7, 7)
        self.scale = nn.Parameter(np.ones(1, np.float32))
        self.never = nn.Parameter(np.ones(3, np.float32))
        self.shift = nn.Parameter(np.full(7, 0.1, np.float32), requires_grad=False)

    def forward(self, x):
        if self.again:
            return x + recompute(self.tail, x)  # a part of a unit
        return x + self.tail(x)

    def tail(self, x):
        return F.tanh(self.linear(x)) * self.scale + self.shift


class Net(nn.Module):
    """5 -> 7 -> blocks -> 5, the last weight tied to the first; batch norm has buffers."""

    def __init__(self, again=""):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.blocks = nn.ModuleList(Block(again == "part") for _ in range(3))
        self.again = again

    def forward(self, x, n_blocks=3):
        x = self.norm(self.first(x))
        for block in list(self.blocks)[:n_blocks]:
            x = recompute(block, x) if self.again == "whole" else block(x)
        return x @ self.first.weight


def net(again="", dtype=np.float32):
    minidl.manual_seed(3)
    return there(Net(again).to(dtype))


def data(step, n_rows=19, dtype=np.float32):
    return np.random.default_rng(step).normal(size=(2, n_rows, 5)).astype(dtype)


def share(t, x):
    """This rank's rows; the first ranks have one more. With 8 ranks and 19 rows: 3 or 2."""
    return [place(np.array_split(a, t.size)[t.rank]) for a in x]


def parallel(stage, model, t, like=None, **options):
    """`model` at a stage; at stage 0 data parallel, in the buckets of the Zero* `like`."""
    if stage:
        return STAGES[stage](model, t, **options)
    model = DataParallel(model, t, all_reduce=ring_blocks.all_reduce)
    places = {p: i for i, p in enumerate(like.module.parameters())}
    mine = list(model.parameters())
    r = model.reducer
    r.buckets = [Bucket([mine[places[p]] for p in b.params], ring_blocks.all_reduce)
                 for b in like.reducer.buckets]
    r.bucket_of = {p: b for b in r.buckets for p in b.params}
    r.rebuilt = True  # it would cut them anew after the first backward
    return model


def leaves(model, group=None):
    return model.shards(group) if isinstance(model, Zero1) else [
        p for b in model.reducer.buckets for p in b.params]


def gather(model):
    if isinstance(model, Zero1):
        model.gather()


def backward(model, x, y, factor=1.0, **options):
    loss = F.mse_loss(model(x, **options), y) * factor
    loss.backward()
    return loss.item()


def finish(model):
    state = {name: np.array(host(array)) for name, array in model.state_dict().items()}
    model.close()
    return state


def assert_same_bits(got, want):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(host(got[name]), host(want[name]), err_msg=name, strict=True)


def train(model, t, n_steps=3, n_micro=1, sync_each=True, optimizer=None, dtype=np.float32):
    """The model's state after some steps on uneven shares, with a schedule; unused weights do not
    decay, because data parallelism leaves them alone."""
    optimizer = optimizer or optim.AdamW(leaves(model), lr=1e-2, weight_decay=0)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(n_steps):
        optimizer.zero_grad()
        for i in range(n_micro):
            x, y = share(t, data([step, i], dtype=dtype))
            if i == n_micro - 1 or sync_each:
                backward(model, x, y)
            else:
                with model.no_sync():
                    backward(model, x, y)
        optimizer.step()
        gather(model)
        scheduler.step()
    return finish(model)
