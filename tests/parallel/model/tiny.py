"""A tiny GPT in float64, and what one rank makes of it: the oracle of this folder."""

import functools

import numpy as np

from minidl import nn, optim, random
from minidl.nn import functional as F
from minidl.optim import clip_grad_norm_
from minidl.parallel.model.parallelize import parallelize, whole_state_dict
from minidl.parallel.model.tensor import whole
from minidl.parallel.model.vocabulary import cross_entropy

VOCAB, WIDTH, LAYERS, BATCH, TOKENS = 11, 16, 2, 2, 8  # 11: no number of ranks divides it
CLOSE = dict(rtol=1e-12, atol=1e-15)  # of sums in another order, float64


def gpt(n_heads=8, seed=3, layers=LAYERS, dropout=0.0, tied=True):
    """Every parameter random: a bias of zeros would hide one that is added twice."""
    model = nn.GPT(VOCAB, TOKENS, layers, n_heads, WIDTH, dropout=dropout, tied=tied,
                   generator=random.Generator(seed)).double()
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        if p.ndim == 1:
            p.array[...] += 0.3 * rng.normal(size=p.shape)
        else:
            p.array[...] *= 10
    return model


def batch(step=0, n_tokens=TOKENS, n=BATCH):
    rng = np.random.default_rng([7, step])
    return rng.integers(0, VOCAB, (n, n_tokens)), rng.integers(0, VOCAB, (n, n_tokens))


def loss_of(model, ids, target, t=None):
    """The mean over tokens; t: the ranks over which the logits are divided, if they are."""
    logits = model(ids)
    rows = logits.reshape(-1, logits.shape[-1])
    if t is None:
        return F.cross_entropy(rows, target.reshape(-1))
    return cross_entropy(t, rows, target.reshape(-1), VOCAB)


@functools.cache
def alone(n_heads=8, n_tokens=TOKENS):
    """(loss, {name: gradient}) of one rank."""
    model = gpt(n_heads)
    loss = loss_of(model, *batch(n_tokens=n_tokens))
    loss.backward()
    return loss.item(), {name: p.grad.array for name, p in model.named_parameters()}


def steps(model, n_steps, t=None, clip=None):
    """The losses of so many steps of AdamW, and the whole weights after them."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(n_steps):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(step), t)
        loss.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: v.array.copy() for k, v in whole_state_dict(model).items()}


@functools.cache
def steps_alone(n_steps, clip=None):
    return steps(gpt(layers=1), n_steps, clip=clip)


def assert_equal_alone(t, grid, n_heads=8, n_tokens=TOKENS, **options):
    """Loss and every gradient are those of one rank."""
    model = parallelize(gpt(n_heads), grid, **options)
    split = grid.tp if options.get("split_logits") else None
    loss = loss_of(model, *batch(n_tokens=n_tokens), split)
    loss.backward()
    wanted, gradients = alone(n_heads, n_tokens)
    np.testing.assert_allclose(loss.item(), wanted, **CLOSE)
    for name, p in model.named_parameters():
        got, want = whole(p, p.grad), gradients[name]
        assert abs(got - want).max() <= 1e-12 * abs(want).max(), (name, abs(got - want).max())
    return model
