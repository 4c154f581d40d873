"""Tensor and pipeline parallelism on device arrays: three steps as on the CPU, every way of them.

Tolerances are of float32 sums in another order, over three steps of an optimizer."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim, random
from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.nn import functional as F
from minidl.parallel.model import schedule as schedules
from minidl.parallel.model.cut import cut
from minidl.parallel.model.parallelize import parallelize, whole_state_dict
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.vocabulary import cross_entropy
from tests.devices import host, put

pytestmark = pytest.mark.gpu
VOCAB, WIDTH, TOKENS, STEPS = 11, 16, 8, 3


def gpt(device, n_layers, tied=True):
    return nn.GPT(VOCAB, TOKENS, n_layers, 4, WIDTH, tied=tied,
                  generator=random.Generator(3)).to(device)


def batch(device, step, n):
    rng = np.random.default_rng([7, step])
    return (minidl.Tensor(put(rng.integers(0, VOCAB, (n, TOKENS)), device)) for _ in range(2))


def entropy(logits, target):
    return F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1))


def tensor_parallel(t, device, **options):
    """(losses and norms, weights) of this rank."""
    model = parallelize(gpt(device, 1), Grid(t, tp=t.size), **options)
    optimizer, seen = optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(STEPS):
        optimizer.zero_grad()
        ids, target = batch(device, step, 2)
        logits = model(ids)
        if options.get("split_logits"):
            loss = cross_entropy(t, logits.reshape(-1, logits.shape[-1]), target.reshape(-1), VOCAB)
        else:
            loss = entropy(logits, target)
        loss.backward()
        seen += [float(optim.clip_grad_norm_(model.parameters(), 0.5)), loss.item()]
        optimizer.step()
    assert {p.device[:4] for p in model.parameters()} == {device[:4]}
    return seen, {name: host(x) for name, x in whole_state_dict(model).items()}


def pipelined(t, device, schedule, per_rank=1, dp=1, zero=None):
    grid = Grid(t, dp=dp, pp=t.size // dp)
    n = grid.pp.size
    options = {"dp": grid.dp, "zero": zero} if zero else {"dp": grid.dp} if dp > 1 else {}
    schedule = schedule(n, 4, per_rank) if per_rank > 1 else schedule(n, 4)
    stages = cut(gpt(device, n * per_rank, tied=not zero), n * per_rank)
    pipe = Pipeline(grid.pp, stages, entropy, schedule, **options)
    trained = pipe.shards() if zero else pipe.parameters()
    optimizer, seen = optim.SGD(trained, 0.05, momentum=0.9), []
    for step in range(STEPS):
        pipe.zero_grad()
        mine = slice(grid.dp.rank * 8 // dp, (grid.dp.rank + 1) * 8 // dp)
        ids, target = batch(device, step, 8)
        seen.append(pipe.everywhere(pipe.step(ids[mine], target[mine])))
        seen.append(float(optim.clip_grad_norm_(trained, 0.5)))
        optimizer.step()
        if zero:
            pipe.gather()
    return seen, {name: host(p) for stage in pipe.stages.values()
                  for name, p in stage.named_parameters()}


WAYS = {
    "tensor": (2, tensor_parallel, {}),
    "split logits": (3, tensor_parallel, {"split_logits": True}),
    "sequence": (2, tensor_parallel, {"sequence": True, "split_logits": True}),
    "overlap": (2, tensor_parallel, {"overlap": 2, "split_logits": True}),
    "gpipe": (2, pipelined, {"schedule": schedules.gpipe}),
    "zb_h1": (2, pipelined, {"schedule": schedules.zb_h1}),
    "interleaved": (2, pipelined, {"schedule": schedules.interleaved, "per_rank": 2}),
    "1f1b, data": (4, pipelined, {"schedule": schedules.one_f_one_b, "dp": 2}),
    "1f1b, zero 2": (4, pipelined, {"schedule": schedules.one_f_one_b, "dp": 2, "zero": 2}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_trains_what_a_cpu_trains(way):
    n, body, options = WAYS[way]
    here, there = (simulate(n, lambda t, d=d: body(t, d, **options)) for d in ("cpu", "cuda"))
    for (seen, weights), (seen_there, weights_there) in zip(here, there, strict=True):
        np.testing.assert_allclose(seen_there, seen, rtol=1e-4)
        for name, want in weights.items():
            np.testing.assert_allclose(weights_there[name], want, rtol=2e-3, atol=2e-3,
                                       err_msg=name)
