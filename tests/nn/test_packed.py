"""Texts packed into rows, nn.GPT(ids, positions): what each is alone, its gradients too."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.comm import simulate
from minidl.data import lengths
from minidl.nn import functional as F
from minidl.parallel import DataParallel

CAPACITY = 24


def texts(n=14, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, 30, k), rng.integers(0, 30, k)) for k in rng.integers(1, 13, n)]


def gpt(dtype=None, dropout=0.0):
    minidl.manual_seed(1)
    return nn.GPT(30, CAPACITY, n_layers=2, n_heads=2, width=16, dropout=dropout)


def packed(samples):
    rows = lengths.first_fit_decreasing([len(ids) for ids, _ in samples], CAPACITY)
    collate = partial(lengths.pack, capacity=CAPACITY)
    return rows, [np.stack(field) for field in zip(*(collate([samples[i] for i in row])
                                                     for row in rows), strict=True)]


@pytest.mark.parametrize("kernels", [True, False])
def test_packed_texts_are_what_they_are_alone(kernels):
    samples, model = texts(), gpt()
    rows, (ids, targets, positions) = packed(samples)
    assert len(rows) < len(samples)
    with minidl.mode.running(kernels=kernels):
        logits = model(ids, positions)
        loss = F.cross_entropy(logits.reshape(-1, 30), targets.reshape(-1))
        loss.backward()
    got = [p.grad.array.copy() for p in model.parameters()]
    for row, out in zip(rows, logits.array, strict=True):
        begin = 0
        for i in row:
            alone, end = model(samples[i][0][None]).array[0], begin + len(samples[i][0])
            np.testing.assert_allclose(out[begin:end], alone, rtol=0, atol=1e-6)
            begin = end
    model.zero_grad()
    n_tokens = sum(len(x) for x, _ in samples)
    for x, y in samples:  # the mean over all tokens, not over texts
        (F.cross_entropy(model(x[None])[0], y) * (len(x) / n_tokens)).backward()
    for p, g in zip(model.parameters(), got, strict=True):
        np.testing.assert_allclose(g, p.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_loss_of_all_ranks_is_a_mean_over_real_tokens(size):
    """Ranks have unequal numbers of real tokens; the gradient is one rank's with all rows."""
    rows, batch = packed(texts(20))

    def gradient(t, part, wrap):
        model = gpt()
        if wrap:
            model = DataParallel(model, t)
        ids, targets, positions = (field[part] for field in batch)
        n_real = int((targets != lengths.FILLS[1]).sum())
        options = dict(n_samples=n_real) if wrap else {}
        logits = model(ids, positions, **options)
        F.cross_entropy(logits.reshape(-1, 30), targets.reshape(-1)).backward()
        grads = [p.grad.array.copy() for p in model.parameters()]
        if wrap:
            model.close()
        return n_real, grads

    whole = simulate(1, gradient, slice(None), False)[0][1]
    ranks = simulate(size, lambda t: gradient(t, slice(t.rank, None, t.size), True))
    assert size == 1 or len({n for n, _ in ranks}) > 1, "nothing tested"
    for _, grads in ranks:
        for a, b in zip(grads, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
