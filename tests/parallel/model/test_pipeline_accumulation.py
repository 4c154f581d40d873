"""A pipeline's gradients are those of all steps since zero_grad: random sequences against one rank.

Drawn: the schedule, replicas (dp) and their stage of ZeRO, which layers share their weights (in one
stage, in two of one rank, in two of different ranks), layers that some micro-batches leave out,
steps before one zero_grad, steps that only evaluate.
"""

import random

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.backend import array_of
from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.nn import functional as F
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.schedule import gpipe, interleaved, one_f_one_b, zb_h1
from tests.conftest import n_drawn

WIDTH, MICRO, SAMPLES = 3, 2, 4  # samples: of a replica and step
CASES = range(n_drawn(30, 200))


class Layer(nn.Module):
    """A product; a scale that only micro-batches with a positive sum use."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.scale = nn.Parameter(np.full(WIDTH, 1.2))

    def forward(self, x):
        y = self.linear(x).tanh()
        return y * self.scale if float(x.sum()) > 0 else y


def model(n_layers, shared):
    """shared: the numbers of the layers that have one weight."""
    minidl.manual_seed(0)
    linears = [nn.Linear(WIDTH, WIDTH).double() for _ in range(n_layers)]
    for i in shared:
        linears[i] = linears[shared[0]]
    return nn.Sequential(*map(Layer, linears))


def drawn(case):
    rng = random.Random(case)
    p = rng.choice([1, 2, 3])
    kind = rng.choice(["gpipe", "1f1b", "interleaved", "zb_h1"])
    schedule = {"gpipe": lambda: gpipe(p, MICRO), "1f1b": lambda: one_f_one_b(p, MICRO),
                "interleaved": lambda: interleaved(p, MICRO * p, 2),
                "zb_h1": lambda: zb_h1(p, MICRO)}[kind]()
    n_stages = 2 * p if kind == "interleaved" else p
    n_layers = n_stages + rng.choice([0, 1])
    shared = sorted(rng.sample(range(n_layers), min(n_layers, rng.choice([0, 2, 2, 3]))))
    return {"p": p, "schedule": schedule, "n_stages": n_stages, "n_layers": n_layers,
            "shared": shared, "dp": rng.choice([1, 2]),
            "zero": 0 if shared else rng.choice([0, 1, 2]), "recompute": rng.random() < 0.25,
            "n_micro": MICRO * (p if kind == "interleaved" else 1),
            "inputs_first": rng.random() < 0.25,
            "what": [*rng.choices(["step", "step", "zero_grad", "evaluate"], k=rng.randint(1, 5)),
                     "step"]}


def batches(case, dp, n_steps, n_samples):
    return np.random.default_rng(case).normal(size=(n_steps, 2, dp, n_samples, WIDTH))


def wanted(case):
    """{name: gradient} of one rank that does all micro-batches."""
    of = drawn(case)
    net = model(of["n_layers"], of["shared"])
    n_micro, dp = of["n_micro"], of["dp"]
    for what, (xs, ys) in zip(of["what"], batches(case, dp, len(of["what"]), 2 * n_micro)):
        if what == "zero_grad":
            net.zero_grad()
        if what != "step":
            continue
        for x, y in zip(xs.reshape(dp * n_micro, 2, WIDTH), ys.reshape(dp * n_micro, 2, WIDTH)):
            (F.mse_loss(net(x), y) / (dp * n_micro)).backward()
    return {name: array_of(p.grad) for name, p in net.named_parameters()}


def gradients(t, case):
    """{name: gradient} of this rank's parameters; under ZeRO {name: (first, end, block)}."""
    of = drawn(case)
    grid = Grid(t, pp=of["p"], dp=of["dp"])
    stages = cut(model(of["n_layers"], of["shared"]), of["n_stages"])
    pipe = Pipeline(grid.pp, stages, F.mse_loss, of["schedule"], zero=of["zero"],
                    dp=grid.dp if of["dp"] > 1 or of["zero"] else None,
                    recompute=of["recompute"], inputs_first=of["inputs_first"])
    for what, (xs, ys) in zip(of["what"],
                              batches(case, of["dp"], len(of["what"]), 2 * of["n_micro"])):
        x, y = xs[grid.dp.rank], ys[grid.dp.rank]
        if what == "zero_grad":
            pipe.zero_grad()
        elif what == "evaluate":
            with minidl.no_grad():
                pipe.step(x, y)
        else:
            pipe.step(x, y)
    if of["zero"]:
        found = {pipe.names[p]: (first, end, shard.grad.array[at:at + end - first].copy())
                 for replica in pipe.replicas.values()
                 for _, shard, p, at, first, end in replica.parts() if end > first}
    else:
        found = {pipe.names[p]: None if p.grad is None else p.grad.array.copy()
                 for p in pipe.parameters()}
    pipe.close()
    return found


@pytest.mark.parametrize("case", CASES)
def test_any_sequence_of_steps_gives_the_gradients_of_one_rank(case):
    of, want, seen = drawn(case), wanted(case), set()
    for found in simulate(of["p"] * of["dp"], gradients, case):
        for name, g in found.items():
            expected = want[name]
            if of["zero"]:
                first, end, g = g
                expected = np.zeros(end) if expected is None else expected.reshape(-1)[:end]
                expected = expected[first:]
            if expected is None or g is None:  # a weight that is shared gets zeros
                assert g is None or not g.any(), name
                assert expected is None or not expected.any(), name
            else:  # sums in another order
                np.testing.assert_allclose(g, expected, rtol=1e-11, atol=1e-14,
                                           err_msg=f"{name} {of}")
            seen.add(name)
    assert seen == set(want)


@pytest.mark.parametrize("zero", [1, 2])
def test_a_frozen_stage_has_an_empty_shard_and_clips_with_the_others(zero):
    def body(t):
        grid = Grid(t, pp=2, dp=2)
        net = model(2, [])
        for p in net[0].parameters():
            p.requires_grad_(False)
        pipe = Pipeline(grid.pp, cut(net, 2), F.mse_loss, one_f_one_b(2, MICRO), dp=grid.dp,
                        zero=zero)
        optimizer = optim.AdamW(pipe.shards(), lr=0.1)
        x, y = batches(0, 2, 1, SAMPLES)[0][:, grid.dp.rank]
        pipe.step(x, y)
        norm = optim.clip_grad_norm_(pipe.shards(), 0.01)
        optimizer.step()
        pipe.gather()
        pipe.close()
        return norm

    net = model(2, [])
    for p in net[0].parameters():
        p.requires_grad_(False)
    x, y = batches(0, 2, 1, SAMPLES)[0].reshape(2, 2 * SAMPLES, WIDTH)
    for i in range(0, 2 * SAMPLES, 2):  # as a layer sees the micro-batches
        (F.mse_loss(net(x[i:i + 2]), y[i:i + 2]) / SAMPLES).backward()
    want = optim.clip_grad_norm_(net.parameters(), 1.0)
    np.testing.assert_allclose(simulate(4, body), want, rtol=1e-12)
