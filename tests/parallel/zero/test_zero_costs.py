"""ZeRO's stages hold and send what the formulas say."""

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim
from minidl.comm import ring
from minidl.comm.observe.ledger import Ledger
from minidl.nn import functional as F
from minidl.parallel import Zero3
from minidl.parallel.data import header
from minidl.precision import amp
from tests.conftest import ranks
from tests.on_device import place, there
from tests.parallel.zero.zero_net import (
    SIZES, STAGES, assert_same_bits, backward, each_stage, finish,
)

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays


def gpt():
    """Every parameter's size is a multiple of 16, so 2, 4 and 8 ranks have equal blocks."""
    minidl.manual_seed(0)
    return there(nn.GPT(vocab_size=32, context=8, width=16, n_layers=3, n_heads=2))


def tokens(t, step=0):
    ids = np.random.default_rng([step, t.rank]).integers(0, 32, (2, 9))
    return place(ids[:, :-1]), place(ids[:, 1:].reshape(-1))


def step_of(model, t, optimizer, scale=1.0):
    x, y = tokens(t)
    optimizer.zero_grad()
    (F.cross_entropy(model(x).reshape(-1, 32), y) * scale).backward()
    optimizer.step(unscale=1 / scale)
    model.gather()


@each_stage
@ranks(*SIZES)
def test_memory_is_the_formula(t, stage):
    """O2 with AdamW, X parameters: 4X + 12X/N, 2X + 14X/N, 16X/N. Nothing is padded: a rank's
    share of a bucket is longer than another's by at most one element."""
    module = gpt()
    X = sum(p.numel() for p in module.parameters())
    amp.prepare(module, "O2")
    model = STAGES[stage](module, t)
    optimizer = optim.use_master_weights(optim.AdamW(model.shards(), lr=1e-2))
    step_of(model, t, optimizer, 64.0)
    own = sum(len(s.array) for s in model.shards())
    held = memory.totals(model, optimizer)
    assert held["parameters"] == 2 * (X if stage < 3 else own)
    assert held["gradients"] == 2 * (X if stage < 2 else own)
    assert held["master weights"] == 4 * own and held["optimizer"] == 8 * own
    if all(b.bounds[-1] % t.size == 0 for b in model.reducer.buckets):
        formula = {1: 4 * X + 12 * X // t.size, 2: 2 * X + 14 * X // t.size, 3: 16 * X // t.size}
        assert own * t.size == X and sum(held.values()) == formula[stage]
    else:
        assert t.size in (3, 5)
        assert abs(own - X / t.size) < len(model.shards())
    model.close()


@pytest.mark.parametrize("half", [False, True])
@each_stage
@ranks(1, 2, 3, 4, 8)
def test_traffic_is_the_formula(t, stage, half):
    ledger = Ledger(t)
    module = gpt()
    if half:
        amp.prepare(module, "O2")
    model = STAGES[stage](module, ledger)
    optimizer = optim.SGD(model.shards(), lr=1e-2)
    step_of(model, t, optimizer)  # the first forward knows no order; its bytes are the same
    ledger.reset()
    step_of(model, t, optimizer)
    width = 2 if half else 4
    buckets = model.reducer.buckets
    X = sum(b.bounds[-1] for b in buckets)
    root = sum(b.bounds[-1] for b in buckets if b.n_gathers == 1) if stage == 3 else X
    scatter = "all_to_all.all_to_all_v" if half else "ring_blocks.reduce_scatter"
    sent = {label: ledger.count(label=label).bytes_sent
            for label in (scatter, "ring_blocks.all_gather", "ring.all_reduce")}
    assert sent[scatter] == width * sum(b.bounds[-1] - len(b.shard.array) for b in buckets)
    assert sum(sent.values()) == ledger.bytes_sent == model.bytes_sent()
    everybody = ring.all_reduce(t, np.array([*sent.values()]))
    n_params = len(model.reducer.params)
    assert everybody.tolist() == [  # over all ranks exactly n-1 times: no byte twice
        (t.size - 1) * width * X,
        (t.size - 1) * width * (2 * X - root),
        2 * (t.size - 1) * header.n_bytes(n_params)]
    if X % t.size == 0 and all(b.bounds[-1] % t.size == 0 for b in buckets):
        units = 2 if stage < 3 else 3
        assert sent[scatter] + sent["ring_blocks.all_gather"] == \
            units * width * X * (t.size - 1) // t.size - \
            (width * root * (t.size - 1) // t.size if stage == 3 else 0)
    model.close()


@ranks(2, 4)
def test_a_model_of_units_alone_sends_three_times(t):
    minidl.manual_seed(1)
    ledger = Ledger(t)
    model = Zero3(there(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])), ledger)
    X = sum(b.bounds[-1] for b in model.reducer.buckets)
    x = place(np.ones((2, 8), np.float32))
    backward(model, x, x)
    model.gather()
    headers = 2 * (t.size - 1) * header.n_bytes(8)
    total = ring.all_reduce(t, np.array([ledger.bytes_sent]))[0]
    assert total - headers - _broadcast_bytes(t, ledger) == 3 * (t.size - 1) * 4 * X
    model.close()


@each_stage
@ranks(1, 2, 3)
def test_traffic_of_several_backwards_in_a_step_is_the_formula(t, stage):
    """Stage 3 frees its units after each backward, so each gathers them anew."""
    ledger = Ledger(t)
    options = {"stay_below": 300} if stage == 3 else {}
    model = STAGES[stage](gpt(), ledger, **options)
    optimizer = optim.SGD(model.shards(), lr=1e-2)
    step_of(model, t, optimizer)
    for n_backwards in (1, 3):
        ledger.reset()
        optimizer.zero_grad()
        for i in range(n_backwards):
            x, y = tokens(t, i)
            F.cross_entropy(model(x).reshape(-1, 32), y).backward()
        optimizer.step()
        model.gather()
        assert ledger.bytes_sent == model.bytes_sent(n_backwards)
    model.close()


def _broadcast_bytes(t, ledger):
    return ring.all_reduce(t, np.array([ledger.count(label="tree.broadcast").bytes_sent]))[0]


@ranks(1, 2, 4)
def test_small_units_stay(t):
    states = []
    for stay_below in (0, 132):
        minidl.manual_seed(1)
        module = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(4, 8))
        there(module)
        ledger = Ledger(t)
        model = Zero3(module, ledger, stay_below=stay_below)
        optimizer = optim.SGD(model.shards(), lr=0.1)
        x = place(np.random.default_rng(t.rank).normal(size=(2, 8)).astype(np.float32))
        for _ in range(2):
            ledger.reset()
            optimizer.zero_grad()
            backward(model, x, x)
            optimizer.step()
            model.gather()
        assert ledger.bytes_sent == model.bytes_sent()
        whole = [b.weights is not None for b in reversed(model.reducer.buckets)]
        assert whole == [False, stay_below > 0, stay_below > 0]  # 288, 132 and 40 elements
        states.append(finish(model))
    assert_same_bits(*states)


@pytest.mark.parametrize("no_sync", [False, True])
@ranks(1, 2, 4)
def test_two_units_and_a_share_of_the_weights_are_whole_at_most(t, no_sync):
    module = gpt()
    X = sum(p.numel() for p in module.parameters())
    model = Zero3(module, t)
    root = sum(b.bounds[-1] for b in model.root)
    unit = max(b.bounds[-1] for b in model.reducer.buckets if b not in model.root)
    optimizer = optim.SGD(model.shards(), lr=1e-2)
    for _ in range(2):
        with memory.record(model, optimizer) as ledger:
            if no_sync:
                with model.no_sync():
                    F.cross_entropy(model(tokens(t)[0]).reshape(-1, 32), tokens(t)[1]).backward()
            else:
                step_of(model, t, optimizer)
    share = X / t.size
    # and no fewer: while one is in use, the next is on its way
    assert ledger.most("parameters") == 4 * (share + root + 2 * unit) < 4 * (share + X)
    assert memory.totals(model, optimizer)["parameters"] == 4 * share
    model.close()


@pytest.mark.parametrize("stage", [1, 2])
@ranks(1, 2)
def test_stage_2_frees_gradients_while_backward_runs(t, stage):
    model = STAGES[stage](gpt(), t, bucket_bytes=4096, first_bucket_bytes=4096)
    X = sum(b.bounds[-1] for b in model.reducer.buckets)
    largest = max(b.bounds[-1] for b in model.reducer.buckets)
    assert largest < X / 2
    step_of(model, t, optim.SGD(model.shards(), lr=1e-2))
    held = sum(b.flat is not None for b in model.reducer.buckets)
    assert held == (len(model.reducer.buckets) if stage == 1 else 0)
    if stage == 2:  # a view would keep the whole bucket alive
        assert all(shard.grad.array.base is None for shard in model.shards())
    model.close()
