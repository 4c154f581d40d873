"""A small GPT for benchmarks: makes a batch, does a training step, and returns the final loss.

bench_compression.py and bench_large_batch.py check that training with fewer bytes is equally good.
They call `final_losses`, which returns the final loss of a small GPT. The GPT trains on the
standard library's text, on 4 simulated ranks. All runs have the same text. Batches depend only on
the rank, the seed and the step. torch_gpt.py has the same step in PyTorch.
"""

import numpy as np
from common import ONE_ROUND

import minidl
from minidl import nn
from minidl.comm import simulate
from minidl.data import text
from minidl.nn import functional as F
from minidl.optim.lr_scheduler import CosineAnnealingLR
from minidl.parallel import DataParallel

VOCAB = 256
SHAPE = VOCAB, 32, 2, 4, 64  # vocabulary, context, layers, heads, width
RANKS, BATCH = 4, 4  # BATCH: texts of a rank in a step


def batch_of(rank, rows, context):
    """Returns a rank's random ids (rows, context), and the targets (rows * context,). The target of
    an id is the next id."""
    ids = np.random.default_rng(rank).integers(0, VOCAB, (rows, context + 1))
    return ids[:, :-1].copy(), ids[:, 1:].reshape(-1).copy()


def loss_of(model, x, y):
    return F.cross_entropy(model(x).reshape(-1, VOCAB), minidl.tensor(y.reshape(-1)))


def step_of(model, optimizer, x, y):
    """Returns a function without arguments. It does one training step and returns the loss of this
    step."""
    def step():
        optimizer.zero_grad()
        value = loss_of(model, x, y)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def final_loss(t, wrap, make_optimizer, seed, n_steps, n_dense=0, shape=SHAPE):
    """Trains for n_steps. Returns the loss on 256 other texts. The learning rate falls to 0 along a
    cosine. wrap(net, t, optimizer) returns the module to call. If this module has a method step(),
    it is called after the optimizer's step. n_dense: the first n_dense steps use data
    parallelism."""
    data = text.stdlib_corpus(1 << 18)
    minidl.manual_seed(seed)
    net = nn.GPT(*shape)
    optimizer = make_optimizer(net.parameters())
    model = DataParallel(net, t) if n_dense else wrap(net, t, optimizer)
    scheduler = CosineAnnealingLR(optimizer, n_steps)
    batches = text.random_batches(data, BATCH, shape[1], t.rank, t.size, seed)
    for step in range(n_steps):
        if step == n_dense > 0:
            model.close()
            model = wrap(net, t, optimizer)
        loss_of(model, *next(batches)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if hasattr(model, "step"):
            model.step()
    with minidl.no_grad():
        return loss_of(net, *next(text.random_batches(data, 256, shape[1], seed=100))).item()


def final_losses(ways, n_steps, seeds=(0, 1, 2), shape=SHAPE):
    """Returns {name: [the final loss of each seed]}. ways: {name: (wrap, make_optimizer)}, with
    n_dense as an optional third entry."""
    found = {}
    for name, way in ways.items():
        wrap, make, n_dense = (*way, 0)[:3]
        if ONE_ROUND:
            n_steps, n_dense, seeds = min(n_steps, 32), min(n_dense, 16), seeds[:1]
        ranks = [simulate(RANKS, final_loss, wrap, make, seed, n_steps, n_dense, shape)
                 for seed in seeds]
        found[name] = [float(np.mean(losses)) for losses in ranks]
        print(f"  {name:24}" + "".join(f"{value:9.4f}" for value in found[name]), flush=True)
    return found
