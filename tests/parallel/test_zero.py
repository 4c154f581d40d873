"""ZeRO's stages train the same model as data parallelism, and hold what the formulas say."""

import numpy as np
import pytest

import minidl
from minidl import memory, nn, optim
from minidl.comm import ring_blocks
from minidl.nn import functional as F
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from tests.conftest import ranks

STAGES = {1: Zero1, 2: Zero2, 3: Zero3}
VOCAB = 20


def gpt():
    minidl.manual_seed(0)
    return nn.GPT(vocab_size=VOCAB, context=8, width=16, n_layers=3, n_heads=2)


def batch(step, rank, rows=2):
    tokens = np.random.default_rng([step, rank]).integers(0, VOCAB, (rows, 9))
    return minidl.tensor(tokens[:, :-1]), minidl.tensor(tokens[:, 1:].reshape(-1))


def train(t, stage, n_steps=3, **options):
    """(losses, {name: array} of the whole model) after some steps of AdamW."""
    if stage == 0:
        model = DataParallel(gpt(), t, all_reduce=ring_blocks.all_reduce)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    else:
        model = STAGES[stage](gpt(), t, **options)
        optimizer = optim.AdamW(model.shards(), lr=1e-2)
    losses = []
    for step in range(n_steps):
        x, y = batch(step, t.rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y)
        loss.backward()
        optimizer.step()
        if stage:
            model.gather()
        losses.append(loss.item())
    state = {name: array.copy() for name, array in model.state_dict().items()}
    model.close()
    return losses, state


@pytest.mark.parametrize("stage", [1, 2, 3])
@ranks(1, 2, 3, 4, 5, 8)
def test_a_stage_trains_what_data_parallelism_trains(t, stage):
    losses, state = train(t, 0)
    losses_here, state_here = train(t, stage)
    # the buckets are cut elsewhere, so sums round in another order: a few ulp, which Adam's
    # division by sqrt(v) makes larger where a gradient is nearly zero
    np.testing.assert_allclose(losses_here, losses, rtol=1e-4)
    for name, array in state.items():
        np.testing.assert_allclose(state_here[name], array, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("stage", [1, 2, 3])
@ranks(1, 2, 3, 4)
def test_states_are_a_share(t, stage):
    model = STAGES[stage](gpt(), t)
    optimizer = optim.AdamW(model.shards(), lr=1e-2)
    n = sum(p.numel() for p in model.parameters())
    x, y = batch(0, t.rank)
    F.cross_entropy(model(x).reshape(-1, VOCAB), y).backward()
    optimizer.step()
    model.gather()
    own = sum(s.numel() for s in model.shards())
    assert abs(own - n / t.size) <= len(model.shards())  # a block is longer by at most one
    held = memory.totals(model, optimizer)
    assert held["optimizer"] == 8 * own
    assert held["gradients"] == 4 * (own if stage >= 2 else n)
    assert held["parameters"] == 4 * (own if stage == 3 else n)
    model.close()


@ranks(2)
def test_forgetting_to_gather_is_an_error(t):
    model = Zero1(gpt(), t)
    optimizer = optim.SGD(model.shards(), lr=0.1)
    x, y = batch(0, t.rank)
    F.cross_entropy(model(x).reshape(-1, VOCAB), y).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"call model.gather\(\) after optimizer.step"):
        model(x)
    model.close()
