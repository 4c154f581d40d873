"""The table of docs/compression.md: what gradient compression goes together with."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import codec
from minidl.memory.recompute import recompute as recomputed
from minidl.nn import functional as F
from minidl.parallel import (
    DGC, Compressed, ErrorFeedback, OneBitAdam, PowerSGD, Zero1, Zero2, Zero3,
)
from minidl.precision import amp
from tests.conftest import ranks
from tests.parallel.data.test_data_parallel import assert_equal_on_all_ranks

METHODS = {
    "int8": (lambda: ErrorFeedback(codec.INT8), 0.9),
    "dgc": (lambda: DGC(momentum=0.9, sparsity=0.8, min_size=20), 0.0),
    "powersgd": (lambda: PowerSGD(rank=2, min_compression_rate=1), 0.9),
    "1-bit adam": (lambda: OneBitAdam(warm_up_steps=4), 0.0),
}


class Net(nn.Module):
    """Batch norm, a frozen weight, a layer that only some inputs use, a recomputed block."""

    def __init__(self, recompute=False):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 16)
        self.norm, self.head, self.other = nn.BatchNorm1d(16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.recompute = recompute
        self.first.bias.requires_grad = False

    def block(self, x):
        return F.relu(self.second(F.relu(self.first(x))))

    def forward(self, x, other=False):
        x = recomputed(self.block, minidl.tensor(x)) if self.recompute else self.block(x)
        return (self.other if other else self.head)(self.norm(x))


def train(t, name, n_steps=6, prepare=lambda net: None, cast=None, masters=False, **options):
    """(losses on this rank, weights, the model) of a short training; the last rank uses another
    head."""
    minidl.manual_seed(0)
    net = Net(**options)
    prepare(net)
    make, momentum = METHODS[name]
    model = Compressed(net, t, make(), bucket_bytes=1000, first_bucket_bytes=100)
    opt = optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.02, momentum=momentum)
    if masters:
        optim.use_master_weights(opt)
    losses = []
    for step in range(n_steps):
        rng = np.random.default_rng([t.rank, step])
        y = rng.integers(0, 3, 12)
        x = (rng.standard_normal((12, 6)) + np.eye(6)[y] * 2).astype(net.first.weight.dtype)
        opt.zero_grad()
        with amp.autocast(dtype=cast) if cast else minidl.enable_grad():
            loss = F.cross_entropy(model(x, other=t.rank and t.rank == t.size - 1).float(), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.close()
    return losses, [p.array.copy() for p in net.parameters()], model


@pytest.mark.parametrize("name", METHODS)
@ranks(1, 2, 3)
def test_recompute_changes_no_bit(t, name):
    _, plain, _ = train(t, name)
    _, again, _ = train(t, name, recompute=True)
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert_equal_on_all_ranks(t, plain)


@pytest.mark.parametrize("name", METHODS)
@ranks(1, 2, 3)
def test_half_precision_weights_owe_in_float32(t, name):
    losses, _, model = train(t, name, prepare=lambda net: net.half(), masters=True)
    assert np.isfinite(losses).all()
    assert all(x.dtype == np.float32 for b in model.reducer.buckets for x in b.own.values())


@pytest.mark.parametrize("name", METHODS)
@ranks(2, mpi=False)
def test_autocast_in_bfloat16(t, name):
    pytest.importorskip("ml_dtypes")
    losses, weights, _ = train(t, name, cast="bfloat16")
    plain, _, _ = train(t, name)
    assert_equal_on_all_ranks(t, weights)
    np.testing.assert_allclose(losses, plain, rtol=0.05, atol=0.05)  # 8 bits of mantissa


@pytest.mark.parametrize("name", METHODS)
@ranks(1, 2, 4)
def test_frozen_weights_do_not_travel_and_unused_ones_count_as_zeros(t, name):
    _, weights, model = train(t, name)
    first_bias = model.module.first.bias
    assert not any(p is first_bias for b in model.reducer.buckets for p in b.params)
    assert_equal_on_all_ranks(t, weights)


@pytest.mark.parametrize("name", METHODS)
@ranks(2, mpi=False)
def test_clipping_what_arrived_is_the_same_on_all_ranks(t, name):
    minidl.manual_seed(0)
    net = nn.MLP(6, 9, 3)
    model = Compressed(net, t, METHODS[name][0]())
    x = np.random.default_rng(t.rank).standard_normal((4, 6)).astype("f4")
    F.cross_entropy(model(x), np.arange(4) % 3).backward()
    optim.clip_grad_norm_(net.parameters(), 0.01)
    assert sum(float((p.grad**2).sum()) for p in net.parameters()) <= 0.01**2 * 1.001
    assert_equal_on_all_ranks(t, [p.grad.array for p in net.parameters()])
    model.close()


@pytest.mark.parametrize("stage", [Zero1, Zero2, Zero3])
@ranks(2, mpi=False)
def test_a_zero_stage_is_refused_inside_and_outside(t, stage):
    with pytest.raises(TypeError, match="ZeRO and Compressed cannot be combined"):
        Compressed(stage(nn.MLP(6, 9, 3), t), t, ErrorFeedback())
    with pytest.raises(TypeError, match=f"to wrap in {stage.__name__}; got a model that is "
                                        "already wrapped in Compressed, so"):
        stage(Compressed(nn.MLP(6, 9, 3), t, ErrorFeedback()), t)
