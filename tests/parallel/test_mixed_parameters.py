"""One list of parameters of several kinds: its norm, clipping, skipping and layer-wise rates.

Each kind is a small model with its own loss. One rank that has the whole of every model is the
oracle: |g|^2 of a list is the sum of the models' |g|^2, in whatever order and company they stand.
"""

import itertools
import math
import random
from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring
from minidl.comm.grid import Grid
from minidl.nn import functional as F
from minidl.optim import over_ranks
from minidl.parallel import DataParallel, Zero1, Zero2, Zero3
from minidl.parallel.model import schedule
from minidl.parallel.model.cut import cut
from minidl.parallel.model.experts import expert_parallel, expert_parameters
from minidl.parallel.model.parallelize import Column, Row, parallelize
from minidl.parallel.model.pipeline import Pipeline
from minidl.precision.grad_scaler import GradScaler
from tests.conftest import n_drawn, ranks

N = 12  # samples, and a multiple of each number of ranks but 5
X = np.random.default_rng(0).normal(size=(N, 6))
PLAN = {"0": Column, "2": Row}


def mlp(seed):
    minidl.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6)).double()


def moe(seed):
    minidl.manual_seed(seed)
    layer = nn.MoE(6, n_experts=5, top_k=2, capacity_factor=None)
    return nn.Sequential(nn.Linear(6, 6), layer).double()


def loss_of(model, x):
    return (model(x) ** 2).mean()


def mine(t):
    return X[t.rank * N // t.size:(t.rank + 1) * N // t.size]


def backward(model, t):
    loss_of(model, mine(t)).backward()


# -- the kinds: each returns (parameters for an optimizer, what is to be closed)


def whole(t, seed):
    """Every rank does all samples itself."""
    model = mlp(seed)
    loss_of(model, X).backward()
    return list(model.parameters()), []


def data_parallel(t, seed):
    model = DataParallel(mlp(seed), t)
    backward(model, t)
    return list(model.parameters()), [model]


def zero(stage):
    def kind(t, seed):
        model = stage(mlp(seed), t)
        backward(model, t)
        return model.shards(), [model]
    return kind


def divided(t, seed):
    """Tensor parallelism: parts of the matrices, and whole biases."""
    model = parallelize(mlp(seed), Grid(t, tp=t.size), PLAN)
    loss_of(model, X).backward()
    return list(model.parameters()), []


def divided_zero(t, seed):
    """The same, its replicas' gradients in shards."""
    tp = 2 if t.size % 2 == 0 else 1
    grid = Grid(t, tp=tp, dp=t.size // tp)
    model = Zero1(parallelize(mlp(seed), grid, PLAN), grid.dp)
    backward(model, grid.dp)
    return model.shards(), [model]


def experts(t, seed):
    model = DataParallel(expert_parallel(moe(seed), t), t)
    backward(model, t)
    return list(model.parameters()), [model]


def experts_zero(t, seed):
    model = Zero2(expert_parallel(moe(seed), t), t)
    backward(model, t)
    return [*model.shards(), *expert_parameters(model)], [model]


def pipeline(t, seed, zero=0):
    """Each rank has other layers."""
    n = 2 if t.size % 2 == 0 else 1
    grid = Grid(t, pp=n, dp=t.size // n)
    pipe = Pipeline(grid.pp, cut(mlp(seed), n), F.mse_loss, schedule.one_f_one_b(n, 1),
                    dp=grid.dp, zero=zero)
    x = mine(grid.dp)
    pipe.step(x, np.zeros((len(x), 6)))
    return pipe.shards() if zero else pipe.parameters(), [pipe]


KINDS = {
    "whole": (whole, mlp), "data parallel": (data_parallel, mlp), "zero 1": (zero(Zero1), mlp),
    "zero 2": (zero(Zero2), mlp), "zero 3": (zero(Zero3), mlp), "divided": (divided, mlp),
    "divided, zero": (divided_zero, mlp), "experts": (experts, moe),
    "experts, zero": (experts_zero, moe), "pipeline": (pipeline, mlp),
    "pipeline, zero": (partial(pipeline, zero=1), mlp),
}


def square_alone(name, seed):
    model = KINDS[name][1](seed)
    loss_of(model, X).backward()
    return sum(float((p.grad ** 2).sum()) for p in model.parameters() if p.grad is not None)


def drawn(case):
    """Some kinds, in some order, and whether their parameters stand in turn."""
    rng = random.Random(case)
    return rng.sample(list(KINDS), rng.randint(1, 4)), rng.random() < 0.5


def listed(t, case):
    """(the parameters of all these models, the same by model, wrappers that are to be closed)"""
    names, in_turn = drawn(case)
    lists, opened = [], []
    for seed, name in enumerate(names):
        params, wrappers = KINDS[name][0](t, seed)
        lists.append(params)
        opened += wrappers
    if in_turn:
        params = [p for each in itertools.zip_longest(*lists) for p in each if p is not None]
    else:
        params = [p for each in lists for p in each]
    return params, lists, opened


def wanted(case):
    return math.sqrt(sum(square_alone(name, seed) for seed, name in enumerate(drawn(case)[0])))


CASES = range(n_drawn(12, 60))


@pytest.mark.parametrize("case", CASES)
@ranks(1, 2, 3, 4)
def test_the_norm_of_a_mixed_list_is_one_ranks_and_clipping_scales_all_of_it(t, case):
    params, _, opened = listed(t, case)
    want = wanted(case)
    before = [p.grad.array.copy() for p in params if p.grad is not None]
    norm = optim.clip_grad_norm_(params, want / 4)
    np.testing.assert_allclose(norm, want, rtol=1e-12, err_msg=str(drawn(case)))
    for p, g in zip([p for p in params if p.grad is not None], before, strict=True):
        np.testing.assert_allclose(p.grad, g / (4 + 4e-6 / want), rtol=1e-9)
    for each in opened:
        each.close()


@pytest.mark.parametrize("case", CASES)
@ranks(1, 2, 3, 4)
def test_one_optimizer_or_several_take_the_same_step_and_skip_together(t, case):
    """The gradients are scaled by 8 before; the norm is that of the unscaled ones."""
    names, _ = drawn(case)
    params, lists, opened = listed(t, case)
    for p in params:
        if p.grad is not None:
            p.grad *= 8
    before = [p.array.copy() for p in params]
    grads = [0 if p.grad is None else p.grad / 8 for p in params]
    scaler = GradScaler(init_scale=8.0)
    want = wanted(case)
    assert scaler.step(optim.SGD(params, lr=1.0), max_norm=want / 2)
    for p, w, g in zip(params, before, grads, strict=True):
        np.testing.assert_allclose(w - p.array, g / (2 + 2e-6 / want), rtol=1e-6, atol=1e-12)
    scaler.update()

    # one infinity in a gradient that this rank alone has, or that all ranks have
    optimizers = [optim.SGD(each, lr=1.0) for each in lists]
    with_grad = [p for p in params if p.grad is not None and p.grad.array.size]
    shards = [p for p in with_grad if n_equal(p, params) == 1
              and math.prod(group.t.size for group in p.sharded_by) == t.size]
    if not shards:
        with_grad[0].grad[...] = np.inf
    elif t.rank == t.size - 1:
        shards[-1].grad[...] = np.inf
    taken = [scaler.step(optimizer) for optimizer in optimizers]
    everybody = np.array(taken, np.float64)
    ring.all_reduce(t, everybody)
    assert set(everybody) <= {0, t.size}, f"ranks differ: {names} {everybody}"
    assert not all(taken)
    for each in opened:
        each.close()


def n_equal(p, params):
    return over_ranks.n_equal(p, over_ranks.groups_of(params))


@ranks(1, 2, 3, 4)
def test_a_stages_own_norm_has_the_divided_experts_in_it(t):
    for stage in (Zero1, Zero2, Zero3):
        model = stage(expert_parallel(moe(3), t), t)
        backward(model, t)
        alone = moe(3)
        loss_of(alone, X).backward()
        want = optim.clip_grad_norm_(alone.parameters(), 1e9).item()
        np.testing.assert_allclose(model.grad_norm(), want, rtol=1e-12)
        np.testing.assert_allclose(model.clip_grad_norm_(want / 2), want, rtol=1e-12)
        want *= want / 2 / (want + 1e-6)  # clip.py's formula
        np.testing.assert_allclose(model.grad_norm(), want, rtol=1e-12)
        model.close()


@pytest.mark.parametrize("make", [partial(optim.LARS, lr=1.0), partial(optim.LAMB, lr=0.1)])
@ranks(1, 2, 3, 4)
def test_layer_wise_rates_of_a_mixed_list_are_one_ranks(t, make):
    """Shards of two ZeRO stages, whole tensors and divided experts, in one optimizer."""
    first, second = Zero1(mlp(0), t), Zero3(mlp(1), t)
    third = Zero1(expert_parallel(moe(2), t), t)
    fourth = mlp(3)
    for model in (first, second, third):
        backward(model, t)
    loss_of(fourth, X).backward()
    optimizer = make([*fourth.parameters(), *first.shards(), *expert_parameters(third),
                      *third.shards(), *second.shards()])
    alone = [mlp(0), mlp(1), moe(2), mlp(3)]
    for model in alone:
        loss_of(model, X).backward()
    wanted = make([p for model in alone for p in model.parameters()])
    optimizer.step()
    wanted.step()
    for model, want in zip((first, second, third), alone):
        model.gather()
        with model.gathered() as module:
            check_weights(module, want)
        model.close()
    check_weights(fourth, alone[3])


def check_weights(model, wanted):
    state = wanted.state_dict()
    for name, got in model.state_dict().items():  # of the experts: those of this rank
        np.testing.assert_allclose(got, state[name], rtol=1e-9, atol=1e-12, err_msg=name)
