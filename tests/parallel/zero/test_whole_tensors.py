"""LARS and LAMB on ZeRO's shards: the norms are those of whole tensors, whoever has which part."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring
from minidl.comm.observe.ledger import Ledger
from minidl.parallel import Zero1
from minidl.parallel.zero.offload import Offload
from minidl.precision import amp
from tests.conftest import ranks
from tests.optim import every
from tests.parallel.zero.zero_net import (
    SIZES, backward, data, each_stage, finish, leaves, net, parallel, share,
)

OPTIMIZERS = {name: partial(every.make, name) for name in every.BY_WHOLE_TENSORS} | {
    "LARS": lambda groups: optim.LARS(groups, lr=3.0, trust_coefficient=0.02, weight_decay=0.01),
    "LAMB": lambda groups: optim.LAMB(groups, lr=0.05, weight_decay=0.1),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make(dtype=np.float64):
    """Without batch norm, whose statistics are of a share; and every weight is used."""
    model = net(dtype=dtype)
    model.norm = nn.Linear(7, 7)
    model.norm.to(dtype)
    for block in model.blocks:
        block.never.requires_grad_(False)  # ZeRO counts it as one with a gradient of zeros
    return model


def groups_of(model):
    """The same two groups of parameters, everywhere."""
    return [g["params"] for g in optim.groups_by_ndim(
        p for p in model.parameters() if p.requires_grad)]


def with_options(matrices, vectors):
    return [{"params": matrices}, {"params": vectors, "adapt": False, "weight_decay": 0.0}]


def serial(name, n_steps=3, dtype=np.float64):
    minidl.manual_seed(5)
    alone = make(dtype)
    optimizer = OPTIMIZERS[name](with_options(*groups_of(alone)))
    for step in range(n_steps):
        optimizer.zero_grad()
        backward(alone, *data([step, 0], dtype=dtype))
        optimizer.step()
    return alone.state_dict()


def sharded(t, stage, name, n_steps=3, dtype=np.float64):
    minidl.manual_seed(5)
    model = make(dtype)
    options = {} if stage == 3 else dict(bucket_bytes=40, first_bucket_bytes=8)
    model = parallel(stage, model, t, groups=groups_of(model), **options)
    optimizer = OPTIMIZERS[name](with_options(model.shards(0), model.shards(1)))
    for step in range(n_steps):
        optimizer.zero_grad()
        backward(model, *share(t, data([step, 0], dtype=dtype)))
        optimizer.step()
        model.gather()
    return finish(model)


@ranks(*SIZES)
def test_shards_take_the_steps_of_one_rank(t):
    """Tied, frozen and one-element weights in buckets of 40 bytes: a tensor lies on several ranks,
    and a rank has parts of several."""
    assert_close(sharded(t, 2, "LAMB", n_steps=2), serial("LAMB", n_steps=2))


@each_optimizer
@each_stage
@ranks(3)
def test_every_stage_does_so(t, stage, name):
    assert_close(sharded(t, stage, name), serial(name))


def assert_close(got, want):
    for key, array in want.items():  # float64 sums of a few dozen terms in another order
        np.testing.assert_allclose(got[key], array, rtol=1e-10, atol=1e-12, err_msg=key)


@each_optimizer
@ranks(2, 3)
def test_with_kernels_in_float32(t, name):
    got, want = sharded(t, 2, name, dtype=np.float32), serial(name, dtype=np.float32)
    for key, array in want.items():  # three steps; sums of a few dozen terms in another order
        np.testing.assert_allclose(got[key], array, rtol=2e-5, atol=2e-6, err_msg=key)


@each_optimizer
@ranks(3)
def test_norms_of_shards_are_something_else(t, name):
    """Negative control: what the tests above compare does depend on the other ranks' parts."""
    minidl.manual_seed(5)
    model = parallel(1, make(), t)
    backward(model, *share(t, data([0, 0], dtype=np.float64)))
    for shard in model.shards():
        shard.declare(sharded_by=())
    optimizer = OPTIMIZERS[name](model.shards())
    optimizer.step()
    model.gather()
    got, want = finish(model), serial(name, n_steps=1)
    assert max(abs(got[key] - want[key]).max() for key in want) > 1e-4


@each_stage
@ranks(1, 3)
def test_a_step_costs_two_numbers_a_tensor(t, stage):
    ledger = Ledger(t)
    model = parallel(stage, make(), ledger)
    optimizer = OPTIMIZERS["LAMB"](leaves(model))
    backward(model, *share(t, data([0, 0], dtype=np.float64)))
    before = ledger.bytes_sent
    optimizer.step()
    n_tensors = sum(p.requires_grad for p in model.module.parameters())
    assert ledger.bytes_sent - before == ring.bytes_sent(2 * n_tensors, 8, t.size, t.rank)
    finish(model)


@ranks(2)
def test_fp16_with_masters_and_a_scale(t):
    """O2 under ZeRO-1 steps as float32 does, within half precision."""
    minidl.manual_seed(5)
    half = make(np.float32)
    amp.prepare(half, "O2")
    model = parallel(1, half, t)
    optimizer = optim.use_master_weights(OPTIMIZERS["LAMB"](leaves(model)))
    scaler = amp.GradScaler(init_scale=2.0**8)
    x, y = share(t, data([0, 0], n_rows=4 * t.size))
    with amp.autocast():
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    assert scaler.step(optimizer, max_norm=100.0)
    model.gather()
    got = finish(model)
    wide = make(np.float32)
    adam = OPTIMIZERS["LAMB"](wide.parameters())
    backward(wide, *data([0, 0], n_rows=4 * t.size))
    adam.step()
    for key, array in wide.state_dict().items():
        # fp16: 2^-11 of a weight near 1; where a gradient is tiny, Adam's first step turns its sign
        close = np.isclose(got[key].astype("f4"), array, rtol=4e-3, atol=4e-3)
        assert close.mean() > 0.95, key


@each_optimizer
@ranks(2)
def test_offloaded_shards_are_refused(t, name):
    model = Zero1(make(np.float32), t)
    with pytest.raises(ValueError, match=f"{name}, which needs the norms of whole tensors"):
        Offload(OPTIMIZERS[name](model.shards()))
    model.close()


def test_offloaded_without_shards_has_the_same_bits():
    results = []
    for wrap in (lambda o: o, lambda o: Offload(o, bucket_bytes=100)):
        minidl.manual_seed(5)
        model = make(np.float32)
        optimizer = wrap(OPTIMIZERS["LAMB"]([p for p in model.parameters() if p.requires_grad]))
        for step in range(2):
            backward(model, *data([step, 0]))
            optimizer.step()
            optimizer.zero_grad()
        results.append(model.state_dict())
    for key in results[0]:
        np.testing.assert_array_equal(results[0][key], results[1][key])


@each_optimizer
@ranks(2, 3, 5)
def test_a_rank_that_has_nothing_of_a_group_takes_part(t, name):
    """One element, the bias: all ranks but one have none of it."""
    minidl.manual_seed(5)
    alone, model = nn.Linear(3, 1), nn.Linear(3, 1)
    model.load_state_dict(alone.state_dict())
    stage = Zero1(model, t, groups=[[model.weight], [model.bias]])
    optimizer = OPTIMIZERS[name](with_options(stage.shards(0), stage.shards(1)))
    one = OPTIMIZERS[name](with_options([alone.weight], [alone.bias]))
    x = np.ones((2, 3), "f4")
    for net_of, opt in ((stage, optimizer), (alone, one)):
        for _ in range(2):
            opt.zero_grad()
            net_of(x).sum().backward()
            opt.step()
            if net_of is stage:
                stage.gather()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(p.array, q.array, rtol=1e-6)  # norms in another order
    stage.close()
