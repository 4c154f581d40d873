"""ZeRO's stages train what data parallelism trains, to the bit."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import average, chunks, ring_blocks
from minidl.comm.observe.ledger import Ledger
from minidl.nn import functional as F
from minidl.optim import lr_scheduler
from minidl.parallel import Zero1, Zero2, Zero3
from minidl.precision import amp
from tests.conftest import ranks
from tests.devices import host
from tests.on_device import place
from tests.optim import every
from tests.parallel.zero.zero_net import (
    SIZES, assert_same_bits, backward, data, each_stage, finish, gather, leaves, net, parallel,
    share, train,
)

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays


@each_stage
@ranks(*SIZES, 8)
def test_float32_has_the_bits_of_data_parallelism(t, stage):
    """Tied, frozen, unused and one-element weights; uneven shares; batch norm; buckets of 40 B."""
    options = {} if stage == 3 else dict(bucket_bytes=40, first_bucket_bytes=8)
    model = parallel(stage, net(), t, **options)
    assert len(model.reducer.buckets) >= 4
    want = train(parallel(0, net(), t, like=model), t)
    assert_same_bits(train(model, t), want)


@each_stage
@pytest.mark.parametrize("name", every.BY_ELEMENTS)
@ranks(3)
def test_every_optimizer_has_the_bits_of_data_parallelism(t, stage, name):
    """Its update of a flat share is that of whole parameters. One that is not by elements is a
    Layerwise, or refuses ZeRO (tests/optim/every.py)."""
    model = parallel(stage, net(), t)
    reference = parallel(0, net(), t, like=model)
    got, want = (train(m, t, optimizer=every.make(name, leaves(m), weight_decay=0))
                 for m in (model, reference))
    assert_same_bits(got, want)


@each_stage
@pytest.mark.parametrize("name", sorted(every.MATRICES_ONLY))
@ranks(2)
def test_an_optimizer_of_whole_matrices_is_refused(t, stage, name):
    model = parallel(stage, net(), t)
    with pytest.raises(ValueError, match="matrices"):
        every.make(name, model.shards())
    model.close()


@each_stage
@ranks(2, 3, 4)
def test_without_overlap_has_the_same_bits(t, stage):
    state = train(parallel(stage, net(), t, overlap=False), t, n_steps=2)
    assert_same_bits(state, train(parallel(stage, net(), t), t, n_steps=2))


@each_stage
@ranks(*SIZES)
def test_n_ranks_equal_one_rank_on_the_whole_batch(t, stage):
    """Without batch norm's layer, whose statistics are of a share."""
    def make():
        model = net(dtype=np.float64)
        model.norm = nn.Linear(7, 7).double().to(model.first.weight.device)
        return model

    minidl.manual_seed(5)
    model = parallel(stage, make(), t)
    state = train(model, t, dtype=np.float64,
                  optimizer=optim.SGD(leaves(model), lr=0.1, momentum=0.9))
    minidl.manual_seed(5)
    alone = make()
    optimizer = optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(3):
        optimizer.zero_grad()
        backward(alone, *map(place, data([step, 0], dtype=np.float64)))
        optimizer.step()
        scheduler.step()
    for name, array in alone.state_dict().items():
        # float64 sums of a few dozen terms in another order
        np.testing.assert_allclose(state[name], host(array), rtol=1e-11, atol=1e-13, err_msg=name)


@each_stage
@ranks(2, 3)
def test_training_alone_is_something_else(t, stage):
    """Negative control: what the tests above compare does depend on the other ranks."""
    state = train(parallel(stage, net(), t), t)
    alone = net()
    optimizer = optim.AdamW(alone.parameters(), lr=1e-2, weight_decay=0)
    for step in range(3):
        optimizer.zero_grad()
        backward(alone, *share(t, data([step, 0])))
        optimizer.step()
    assert abs(state["first.weight"] - host(alone.first.weight)).max() > 1e-3


def train_half(model, t, n_steps=3):
    """O2: half weights and gradients, float32 masters, dynamic scale; rank 0 overflows once."""
    optimizer = optim.use_master_weights(optim.AdamW(leaves(model), lr=1e-2, weight_decay=0))
    scaler = amp.GradScaler(init_scale=2.0**8)
    taken = []
    for step in range(n_steps):
        optimizer.zero_grad()
        x, y = share(t, data(step, n_rows=2 * t.size))
        factor = 1e30 if step == 1 and t.rank == 0 else 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            scaler.scale(F.mse_loss(model(x), y) * factor).backward()
        taken.append(scaler.step(optimizer))
        scaler.update()
        gather(model)
    return taken, scaler.get_scale(), finish(model)


def half_net():
    model = net()
    amp.prepare(model, "O2")
    return model


@each_stage
@ranks(*SIZES)
def test_float16_has_the_bits_of_data_parallelism(t, stage):
    """Equal shares: gradients are not rounded before they travel. Batch norm stays float32."""
    model = parallel(stage, half_net(), t)
    *want, state = train_half(parallel(0, half_net(), t, like=model), t)
    *got, state_here = train_half(model, t)
    assert got == want == [[True, False, True], 2.0**7]
    assert_same_bits(state_here, state)
    assert state["first.weight"].dtype == np.float16


@ranks(2, 3, 4, 5)
def test_float16_sums_have_float32_bits_in_the_rings_order(t):
    """Rank 0's and rank 1's large terms cancel: what is left of the others shows the order."""
    large = {0: 16384.0, 1: -16384.0}.get(t.rank)
    x = np.random.default_rng(t.rank).normal(size=1001) if large is None else np.full(1001, large)
    x = x.astype(np.float16)
    bounds = chunks.bounds(len(x), t.size)
    want = ring_blocks.reduce_scatter(t, x.astype(np.float32), bounds) / np.float32(t.size)
    got = average.mean_block(t, x, bounds)
    np.testing.assert_array_equal(got, want.astype(np.float16))


@ranks(2, 3, 4)
def test_float16_with_uneven_shares_is_a_rounding_away(t):
    """A gradient times its share of the samples is rounded to float16 before it travels."""
    model = parallel(1, half_net(), t)
    reference = parallel(0, half_net(), t, like=model)
    for m in (model, reference):
        backward(m, *share(t, data(0, n_rows=2 * t.size + 1)), factor=2.0**8)
    for ours, theirs in zip(model.reducer.buckets, reference.reducer.buckets, strict=True):
        whole = np.concatenate([(np.zeros(p.shape) if p.grad is None else host(p.grad)).reshape(-1)
                                for p in theirs.params]).astype(np.float64)
        # each rank's term is rounded by at most 2^-11 of itself; ranks' terms may cancel
        np.testing.assert_allclose(host(ours.shard.grad), np.array_split(whole, t.size)[t.rank],
                                   rtol=2**-10, atol=2**-10 * abs(whole).max())
    model.close()
    reference.close()


@each_stage
@ranks(1, 2, 3, 4)
def test_parameter_groups_have_shards_of_their_own(t, stage):
    def groups(model):
        decay = [p for p in model.parameters() if p.ndim > 1]
        return decay, [p for p in model.parameters() if p.ndim <= 1]

    module = net()
    model = parallel(stage, module, t, groups=groups(module))
    reference = parallel(0, net(), t, like=model)
    assert model.shards() != model.shards(0) and set(model.shards()) == {
        *model.shards(0), *model.shards(1)}
    # no decay in the second group: it has the unused weights
    states = []
    for m, (a, b) in ((model, (model.shards(0), model.shards(1))),
                      (reference, groups(reference.module))):
        optimizer = optim.AdamW([{"params": a, "weight_decay": 0.3, "lr": 2e-2},
                                 {"params": [p for p in b if p.requires_grad]}],
                                lr=1e-2, weight_decay=0)
        states.append(train(m, t, optimizer=optimizer))
    assert_same_bits(*states)


@ranks(2)
def test_groups_must_have_every_parameter_once(t):
    model = net()
    a, *rest = model.parameters()
    with pytest.raises(ValueError, match="got first.weight in 0 groups"):
        Zero1(model, t, groups=[rest])
    with pytest.raises(ValueError, match="got first.weight in 2 groups"):
        Zero2(model, t, groups=[[a], [a, *rest]])
    with pytest.raises(ValueError, match="not in the model"):
        Zero3(model, t, groups=[[a, *rest], [nn.Parameter(np.ones(2))]])


@each_stage
@ranks(1, 2, 3, 4)
def test_accumulation_under_no_sync_has_the_bits_of_data_parallelism(t, stage):
    ledger = Ledger(t)
    model = parallel(stage, net(), ledger)
    want = train(parallel(0, net(), t, like=model), t, n_micro=3, sync_each=False)
    start = ledger.count(label="ring_blocks.reduce_scatter").bytes_sent
    assert_same_bits(train(model, ledger, n_micro=3, sync_each=False), want)
    scattered = ledger.count(label="ring_blocks.reduce_scatter").bytes_sent - start
    assert scattered == 3 * sum(  # once a step
        4 * (b.bounds[-1] - len(b.shard.array)) for b in model.reducer.buckets)


@each_stage
@ranks(1, 2, 3)
def test_without_no_sync_every_backward_sends_and_means_add_up(t, stage):
    ledger = Ledger(t)
    model = parallel(stage, net(dtype=np.float64), ledger)
    reference = parallel(0, net(dtype=np.float64), t, like=model)
    sums = {p: 0 for p in reference.module.parameters() if p.requires_grad}
    for i in range(3):
        x, y = share(t, data(i, dtype=np.float64))
        ledger.reset()
        backward(model, x, y)
        sent = ledger.count(label="ring_blocks.reduce_scatter").bytes_sent
        assert sent == sum(8 * (b.bounds[-1] - b.shard.numel()) for b in model.reducer.buckets)
        reference.zero_grad()
        backward(reference, x, y)
        for p in sums:
            sums[p] = sums[p] + (0 if p.grad is None else host(p.grad))
    for ours, theirs in zip(model.reducer.buckets, reference.reducer.buckets, strict=True):
        whole = np.concatenate([np.broadcast_to(sums[p], p.shape).reshape(-1)
                                for p in theirs.params])
        # the sum of three means here, there the mean of three sums: a few roundings of 2^-53
        np.testing.assert_allclose(host(ours.shard.grad), np.array_split(whole, t.size)[t.rank],
                                   rtol=1e-12, atol=1e-15)
    model.close()
    reference.close()


@each_stage
@ranks(1, 2, 3)
def test_clipping_is_by_the_norm_of_all_shards(t, stage):
    model = parallel(stage, net(), t)
    reference = parallel(0, net(), t, like=model)
    for m in (model, reference):
        backward(m, *share(t, data(0)))
    norm = optim.grad_norm(reference.module.parameters())
    # float32 squares against float64 ones
    assert model.grad_norm() == pytest.approx(norm, rel=1e-6)
    assert model.clip_grad_norm_(norm / 3) == pytest.approx(norm, rel=1e-6)
    assert model.grad_norm() == pytest.approx(norm / 3, rel=1e-5)
    before = [s.grad.array.copy() for s in model.shards()]
    model.clip_grad_norm_(norm)
    assert all((a == s.grad).all() for a, s in zip(before, model.shards(), strict=True))
    model.close()
    reference.close()


@each_stage
@ranks(1, 2, 3)
def test_ranks_skip_together_and_squares_do_not_overflow(t, stage):
    model = parallel(stage, half_net(), t)
    optimizer = optim.use_master_weights(optim.SGD(model.shards(), lr=1.0))
    scaler = amp.GradScaler(init_scale=16.0)
    scaler.scale(F.mse_loss(model(share(t, data(0))[0]), share(t, data(0))[1])).backward()
    shards = [s for s in model.shards() if s.grad is not None]
    for s in shards:
        s.grad[...] = 300  # whose square passes float16's 65504
    n_elems = model.sum_over_ranks(sum(s.numel() for s in shards))
    assert model.grad_norm() == pytest.approx(300 * math.sqrt(n_elems), rel=1e-12)
    if t.rank == t.size - 1:  # this rank alone sees it
        next(s for s in shards if s.numel()).grad[0] = np.inf
    before = [p.array.copy() for p in optimizer.parameters()]
    assert not scaler.step(optimizer)
    assert all((p.array == a).all() for p, a in zip(optimizer.parameters(), before, strict=True))
    model.close()


@each_stage
@ranks(1, 2, 3)
def test_a_scaler_clips_by_the_norm_of_all_shards(t, stage):
    """SGD with lr 1: the update is the clipped gradient, whose norm over all ranks is max_norm."""
    model = parallel(stage, half_net(), t)
    optimizer = optim.use_master_weights(optim.SGD(model.shards(), lr=1.0))
    scaler = amp.GradScaler(init_scale=16.0)
    before = [p.array.copy() for p in optimizer.parameters()]
    x, y = share(t, data(0, n_rows=2 * t.size))
    scaler.scale(F.mse_loss(model(x), y)).backward()
    assert model.grad_norm() / 16 > 0.01
    assert scaler.step(optimizer, max_norm=0.01)
    moved = sum(float(np.square(host(p.array - a), dtype=np.float64).sum())
                for p, a in zip(optimizer.parameters(), before, strict=True))
    # float32 weights of about 1 moved by 0.001: five digits are left
    assert math.sqrt(model.sum_over_ranks(moved)) == pytest.approx(0.01, rel=1e-3)
    model.close()


@pytest.mark.parametrize("again", ["whole", "part"])
@ranks(1, 2, 3)
def test_units_may_be_recomputed(t, again):
    plain, recomputed = Ledger(t), Ledger(t)
    want = train(parallel(3, net(), plain), plain)
    assert_same_bits(train(parallel(3, net(again), recomputed), recomputed), want)
    assert recomputed.bytes_sent == plain.bytes_sent  # at home for both: run again, and backward


@each_stage
@ranks(2, 3)
def test_autocast(t, stage):
    """O1: float32 weights and gradients, half products."""
    ours, theirs = net(), net()
    amp.prepare(ours, "O1")
    amp.prepare(theirs, "O1")
    model = parallel(stage, ours, t)
    want = train(parallel(0, theirs, t, like=model), t, n_steps=2)
    assert_same_bits(train(model, t, n_steps=2), want)


@ranks(1, 2, 3)
def test_a_unit_that_was_fetched_for_nothing_comes_with_new_values(t):
    """Forward through some of the units fetches the next one, which then is not used."""
    model = parallel(3, net(), t)
    reference = parallel(0, net(), t, like=model)
    states = []
    for m in (model, reference):
        optimizer = optim.SGD(leaves(m), lr=0.1)
        for step, n_blocks in enumerate((3, 2, 3)):
            optimizer.zero_grad()
            backward(m, *share(t, data(step)), n_blocks=n_blocks)
            with minidl.no_grad():
                m(share(t, data(9))[0], n_blocks=1)
            optimizer.step()
            gather(m)
        states.append(finish(m))
    assert_same_bits(*states)
