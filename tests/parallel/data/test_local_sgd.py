"""Local SGD: what p replicas do that are averaged by hand; bytes; data parallelism where H is 1."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim, snapshot
from minidl.comm import ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Offload, Zero1
from minidl.parallel.data import header
from minidl.parallel.data.local_sgd import LocalSGD, Rounds, h0_inside, h0_outside
from tests.conftest import ranks

SIZES = (1, 2, 3, 4, 5, 8)
SGD = {"plain": dict(), "momentum": dict(momentum=0.9),
       "nesterov": dict(momentum=0.9, nesterov=True)}


def net(dtype="f8"):
    minidl.manual_seed(2)
    return nn.MLP(5, 6, 3).to(np.dtype(dtype))


def batch(step, rank, dtype="f8"):
    rng = np.random.default_rng([step, rank])
    return rng.normal(size=(4, 5)).astype(dtype), rng.normal(size=(4, 3)).astype(dtype)


def backward(model, step, rank, dtype="f8"):
    x, y = batch(step, rank, dtype)
    loss = F.mse_loss(model(x), minidl.tensor(y))
    loss.backward()
    return float(loss.item())


def train(t, make, n_steps=7, dtype="f8", wrap=LocalSGD, **options):
    """The wrapper after some steps, and this rank's losses."""
    model = net(dtype)
    optimizer = make(model.parameters())
    local = wrap(model, t, optimizer, **options)
    losses = []
    for step in range(n_steps):
        losses.append(backward(local, step, t.rank, dtype))
        optimizer.step()
        optimizer.zero_grad()
        local.step(losses[-1]) if options.get("rule") else local.step()
    return local, losses


def by_hand(n, make, averages, n_steps=7, dtype="f8"):
    """The weights of n replicas after some steps; averages(step): groups to average after it."""
    models = [net(dtype) for _ in range(n)]
    optimizers = [make(m.parameters()) for m in models]
    for step in range(n_steps):
        for k in range(n):
            backward(models[k], step, k, dtype)
            optimizers[k].step()
            optimizers[k].zero_grad()
        for group in averages(step):
            for copies in zip(*(models[k].parameters() for k in group)):
                mean = sum(p.array for p in copies) / len(group)
                for p in copies:
                    p.array[...] = mean
    return models


def sgd(**options):
    return lambda params: optim.SGD(params, lr=0.1, **options)


def adamw(params):
    return optim.AdamW(params, lr=0.02)


def weights(model):
    return np.concatenate([p.array.reshape(-1) for p in model.parameters()])


def data_parallel(t, make, n_steps=7, dtype="f8"):
    model = net(dtype)
    parallel = DataParallel(model, t)
    optimizer = make(model.parameters())
    for step in range(n_steps):
        backward(parallel, step, t.rank, dtype)
        optimizer.step()
        optimizer.zero_grad()
    parallel.close()
    return weights(model)


@ranks(*SIZES)
def test_ranks_train_what_replicas_do_that_are_averaged_by_hand(t):
    """H = 2, each with its own momentum; two whole rounds and a step."""
    local, _ = train(t, sgd(momentum=0.9), n_steps=5, period=2)
    models = by_hand(t.size, sgd(momentum=0.9),
                     lambda step: [range(t.size)] if step % 2 else [], 5)
    # float64 sums of p terms in another order, five steps
    np.testing.assert_allclose(weights(local.module), weights(models[t.rank]), rtol=1e-10)
    local.close()


@pytest.mark.parametrize("make", [sgd(), sgd(momentum=0.9), adamw],
                         ids=["sgd", "momentum", "adamw"])
@ranks(1, 2, 3)
def test_a_period_of_one_is_data_parallelism_to_the_bit(t, make):
    local, _ = train(t, make, dtype="f4", period=1)
    np.testing.assert_array_equal(weights(local.module), data_parallel(t, make, dtype="f4"))
    local.close()


@pytest.mark.parametrize("name", SGD)
@ranks(2, 3)
def test_weights_averaged_every_step_are_data_parallelism_too(t, name):
    """To rounding: an average of steps that are linear in gradients. Adam's are not."""
    def apart(make):
        model = net()
        optimizer = make(model.parameters())
        local = LocalSGD(model, t, optimizer, period=1)
        local.rounds.parted = True  # as if ranks had stepped by themselves before
        for step in range(5):
            backward(local, step, t.rank)
            optimizer.step()
            optimizer.zero_grad()
            local.step()
        local.close()
        return abs(weights(model) - data_parallel(t, make, 5)).max()

    assert apart(sgd(**SGD[name])) < 1e-14
    assert apart(adamw) > 1e-4  # negative control


@ranks(2, 3)
def test_longer_rounds_are_not_data_parallelism(t):
    local, _ = train(t, sgd(), n_steps=6, period=3)
    assert abs(weights(local.module) - data_parallel(t, sgd(), 6)).max() > 1e-5
    local.close()


@ranks(*SIZES)
def test_bytes_are_one_message_of_the_weights_a_round(t):
    """Post-local: 3 steps of data parallelism, then 2 rounds of 2, then one step that sends
    nothing."""
    ledger = Ledger(t)
    model = net("f4")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    local = LocalSGD(model, ledger, optimizer, period=2, start=3)
    sent = []
    for step in range(8):
        before = ledger.bytes_sent
        backward(local, step, t.rank, "f4")
        optimizer.step()
        optimizer.zero_grad()
        local.step()
        sent.append(ledger.bytes_sent - before)
    n = sum(p.numel() for p in model.parameters())
    one = ring.bytes_sent(n, 4, t.size, t.rank)
    assert local.bytes_sent() == one
    assert sent[3:] == [0, one, 0, one, 0]
    ahead = header.bytes_sent(4, t.size, t.rank)
    assert sent[1] == sent[2] == one + ahead  # gradients, in one bucket
    assert local.rounds.n_rounds == 3 + 2
    local.close()


@ranks(4)
def test_inside_a_node_more_often_than_across(t):
    """Two nodes of two: inside them every 2 steps, all four every 4."""
    ledger = Ledger(t)
    node = ledger.subgroup([0, 1] if t.rank < 2 else [2, 3])
    model = net()
    optimizer = sgd()(model.parameters())
    local = LocalSGD(model, ledger, optimizer, period=4, inside=(node, 2))
    for step in range(7):
        backward(local, step, t.rank)
        optimizer.step()
        optimizer.zero_grad()
        local.step()
    models = by_hand(4, sgd(), lambda step: {3: [range(4)], 1: [(0, 1), (2, 3)],
                                             5: [(0, 1), (2, 3)]}.get(step, []))
    np.testing.assert_allclose(weights(model), weights(models[t.rank]), rtol=1e-10)
    local.close()


def test_the_two_adaptive_rules_differ_by_the_root_of_h0():
    """lr0 loss / (lr loss0) of 1, 0.45, 0.13 and 1.4, h0 = 16."""
    ratios = [1, 0.45, 0.13, 1.4]
    assert [h0_outside(16, 0.1, 2.0, 0.1, 2.0 * r) for r in ratios] == [16, 11, 6, 19]
    assert [h0_inside(16, 0.1, 2.0, 0.1, 2.0 * r) for r in ratios] == [4, 3, 2, 5]
    assert h0_outside(16, 0.4, 2.0, 0.1, 2.0) == 32  # a smaller rate: longer rounds


@ranks(2, 3)
def test_a_rule_sets_the_same_period_on_all_ranks(t):
    local, losses = train(t, sgd(), n_steps=12, period=4, rule=h0_outside)
    every = np.array(ring.all_reduce(t, np.array(losses))) / t.size
    periods, period, at, first = [], 4, 0, every[3]  # of the first round's end
    while at + period <= 12:
        at += period
        period = min(max(h0_outside(4, 0.1, first, 0.1, every[at - 1]), 1), 16)
        periods.append(period)
    assert local.rounds.periods == periods
    local.close()


@ranks(2, 3)
def test_a_rule_that_comes_down_to_one_does_not_let_ranks_part(t):
    """Their momenta differ by then: equal gradients would take other steps."""
    local, _ = train(t, sgd(momentum=0.9), n_steps=6, period=2, rule=lambda *_: 1)
    assert local.rounds.periods[-1] == 1 and not local.rounds.dense
    assert local.divergence() < 1e-14
    local.close()


@ranks(2, 3)
def test_momentum_is_averaged_where_it_is_to_be(t):
    for state in ("local", "mean"):
        local, _ = train(t, sgd(momentum=0.9), n_steps=3, period=3, state=state)
        p = next(local.parameters())
        v = local.optimizer.state[p]["momentum_buffer"]
        mean = ring.all_reduce(t, v.copy()) / t.size
        assert np.allclose(v, mean, rtol=1e-12) == (state == "mean")
        local.close()


@ranks(2, 3, 4)
def test_divergence_is_the_distance_to_the_mean_replica(t):
    local, _ = train(t, sgd(), n_steps=2, period=5)
    models = by_hand(t.size, sgd(), lambda step: [], 2)
    every = np.stack([weights(m) for m in models])
    want = np.sqrt(((every - every.mean(0)) ** 2).sum() / t.size)
    assert local.divergence() == pytest.approx(want, rel=1e-9)
    local.average(t)
    assert local.divergence() < 1e-14
    local.close()


@ranks(2)
def test_masters_are_averaged_in_float32(t):
    model = net("f2")
    optimizer = optim.use_master_weights(optim.SGD(model.parameters(), lr=1e-4))
    local = LocalSGD(model, t, optimizer, period=1)
    local.rounds.parted = True
    start = [p.array.copy() for p in optimizer.parameters()]
    for step in range(3):
        backward(local, step, t.rank, "f2")
        optimizer.step()
        optimizer.zero_grad()
        local.step()
    for master, before in zip(optimizer.parameters(), start, strict=True):
        assert master.dtype == np.float32 and abs(master.array - before).max() > 0
        both = ring.all_reduce(t, master.array.copy(), np.maximum)
        np.testing.assert_array_equal(both, master.array)
        np.testing.assert_array_equal(optimizer.low[master].array, master.array.astype("f2"))
    local.close()


@ranks(2)
def test_buffers_become_rank_0s_and_accumulation_counts_steps(t):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    local = LocalSGD(model, t, optimizer, period=2)
    for step in range(2):
        with local.no_sync():
            backward(local, 2 * step, t.rank, "f4")
        backward(local, 2 * step + 1, t.rank, "f4")
        optimizer.step()
        optimizer.zero_grad()
        local.step()
    assert local.rounds.n_rounds == 1
    mean = model[1].running_mean.array
    np.testing.assert_array_equal(ring.all_reduce(t, mean.copy(), np.maximum), mean)
    local.close()


def test_a_snapshot_goes_on_to_the_same_bits(tmp_path):
    """The model and the rounds in one; each rank's own momentum in a folder of its own."""
    def run(t, restart):
        model, make = net("f4"), sgd(momentum=0.9)
        optimizer = make(model.parameters())
        local = LocalSGD(model, t, optimizer, period=2, start=1)
        alone = t.subgroup([t.rank])
        for step in range(7):
            backward(local, step, t.rank, "f4")
            optimizer.step()
            optimizer.zero_grad()
            local.step()
            if step == 3:
                with pytest.raises(ValueError, match="got step 1 of 2 steps of a round"):
                    local.rounds.state_dict()
            if step == 4 and restart:
                snapshot.save(tmp_path / "all", 5, t, model=model, rounds=local.rounds)
                snapshot.save(tmp_path / f"rank{t.rank}", 5, alone, model=model,
                              optimizer=optimizer)
                local.close()
                model = net("f4")
                optimizer = make(model.parameters())
                local = LocalSGD(model, t, optimizer, period=2, start=1)
                snapshot.load(tmp_path / f"rank{t.rank}", alone, model=model, optimizer=optimizer)
                assert snapshot.load(tmp_path / "all", t, model=model, rounds=local.rounds) == 5
        local.close()
        return weights(model), vars(local.rounds)

    for (a, rounds), (b, others) in zip(simulate(2, run, False), simulate(2, run, True)):
        np.testing.assert_array_equal(a, b)
        assert rounds == others


@ranks(2)
def test_what_does_not_go_together_is_refused(t):
    model = net("f4")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for options, message in ((dict(period=0), "a period of at least 1"),
                             (dict(period=3, inside=(t, 2)), "the period must be divisible by H1"),
                             (dict(period=2, state="none"), "state='local' or state='mean'")):
        with pytest.raises(ValueError, match=message):
            LocalSGD(model, t, optimizer, **options)
    local = LocalSGD(model, t, optimizer, period=2, rule=h0_inside)
    with pytest.raises(ValueError, match="wants the loss in each step\\(loss="):
        local.step()
    local.close()
    with pytest.raises(TypeError, match="got Offload, which keeps its weights on the host"):
        LocalSGD(model, t, Offload(optim.SGD(model.parameters(), lr=0.1)), period=2)
    stage = Zero1(net("f4"), t)
    with pytest.raises(TypeError, match="LocalSGD wants a model that is not wrapped; got a Zero1"):
        LocalSGD(stage, t, optim.SGD(stage.shards()), period=2)
    with pytest.raises(TypeError, match="only parts of the weights, because a ZeRO stage"):
        LocalSGD(stage.module, t, optim.SGD(stage.shards()), period=2)
    stage.close()


def test_rounds_count_steps_of_data_parallelism_as_one_each():
    rounds = Rounds(4, start=3)
    ends = [rounds.count() for _ in range(11)]
    assert ends == [False] * 3 + [False, False, False, True] * 2
    assert rounds.n_rounds == 3 + 2 and rounds.n_steps == 11
