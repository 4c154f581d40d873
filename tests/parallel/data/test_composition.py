"""What docs/large_batches.md says goes together does: the same bits with recompute and offload,
nearly the same under autocast."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import simulate
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel import DataParallel, DiLoCo, LocalSGD, NoiseScale, Offload, SyncBatchNorm
from minidl.precision import amp


class Net(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.first, self.norm = nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3)
        self.again = again

    def middle(self, x):
        return F.gelu(self.norm(self.first(x)))

    def forward(self, x):
        return self.last(recompute(self.middle, x) if self.again else self.middle(x))


def adamw(params):
    return optim.AdamW(params, lr=0.1, eps=0.1)  # so that a tiny gradient has no large step


def plain(t, model, optimizer):
    return DataParallel(model, t), None


def noise(t, model, optimizer):
    model = DataParallel(model, t)
    return model, NoiseScale(model)


TECHNIQUES = {  # (what is done to the model, the optimizer, the wrapper and what steps with it)
    "SyncBatchNorm": (SyncBatchNorm.convert, adamw, plain),
    "LARS": (None, lambda p: optim.LARS(p, lr=3.0), plain),
    "LAMB": (None, lambda p: optim.LAMB(p, lr=0.01, eps=0.1), plain),
    "noise scale": (None, adamw, noise),
    "LocalSGD": (None, adamw, lambda t, model, optimizer: 2 * (
        LocalSGD(model, t, optimizer, period=2),)),
    "DiLoCo": (None, adamw, lambda t, model, optimizer: 2 * (
        DiLoCo(model, t, optimizer, period=2, fragments=2, delay=0),)),
}


def trained(t, technique, way=""):
    """All weights, and the noise scale, after four steps."""
    convert, make, wrap = TECHNIQUES[technique]
    minidl.manual_seed(4)
    model = Net(again=way == "recompute")
    if convert:
        model = convert(model, t)
    optimizer = make(model.parameters())
    wrapped, beside = wrap(t, model, optimizer)
    if way == "offload":  # after the wrapper: it waits for the means
        optimizer = Offload(optimizer, bucket_bytes=64)
    for step in range(4):
        x, y = np.random.default_rng([step, t.rank]).normal(size=(2, 4, 5)).astype("f4")
        with amp.autocast(enabled=way == "autocast"):
            loss = F.mse_loss(wrapped(minidl.tensor(x)).float(), minidl.tensor(y[:, :3]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if hasattr(beside, "step"):
            beside.step()
    if hasattr(wrapped, "close"):
        wrapped.close()
    found = [p.array.copy() for p in model.parameters()]
    return found + [np.array([beside.g2, beside.s])] if technique == "noise scale" else found


def pairs(technique, way):
    def body(t):
        return trained(t, technique), trained(t, technique, way)

    return [pair for rank in simulate(2, body) for pair in zip(*rank, strict=True)]


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_recompute_has_the_same_bits(technique):
    for a, b in pairs(technique, "recompute"):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("technique", ["SyncBatchNorm", "LARS", "LAMB", "noise scale"])
def test_the_optimizer_on_the_host_has_the_same_bits(technique):
    for a, b in pairs(technique, "offload"):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_autocast_trains_nearly_the_same(technique):
    """fp16 products: 2^-11 of each, in gradients of which each step takes a tenth."""
    for a, b in pairs(technique, "autocast"):
        tolerance = dict(rtol=0.05, atol=1e-4) if len(a) == 2 else dict(atol=4e-3)
        np.testing.assert_allclose(a, b, **tolerance)
