"""Llama computes its formula, learns, and takes packed rows."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.gradcheck import gradcheck
from minidl.nn import functional as F
from minidl.nn.llama import Rotary, frequencies, n_operations, n_parameters
from tests.devices import put


def llama(**options):
    minidl.manual_seed(0)
    return nn.Llama(**dict(vocab_size=11, context=10, n_layers=2, n_heads=4, width=16, n_kv_heads=2)
                    | options)


def oracle(model, ids):
    """The logits by loops over positions and heads in float64, complex numbers for the rotation:
    (a + ib) e^(i angle) of the halves a and b. Written from the papers."""
    w = {name: p.array.astype(np.float64) for name, p in model.named_parameters()}
    w.setdefault("head.weight", w["token.weight"])
    a = model.blocks[0].attention
    H, K, E, (N, T) = a.n_heads, a.n_kv_heads, a.head_width, ids.shape

    def rms(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def turn(x, t):
        z = (x[:E // 2] + 1j * x[E // 2:]) * np.exp(1j * t * model.frequencies)
        return np.concatenate([z.real, z.imag])

    x = w["token.weight"][ids]
    for i in range(len(model.blocks)):
        p = f"blocks.{i}."
        qkv = rms(x, w[p + "norm1.weight"]) @ w[p + "attention.qkv.weight"].T
        out = np.zeros((N, T, H * E))
        for n in range(N):
            for h in range(H):
                g = h // (H // K)
                q = [turn(qkv[n, t, h * E:][:E], t) for t in range(T)]
                k = [turn(qkv[n, t, (H + g) * E:][:E], t) for t in range(T)]
                for t in range(T):
                    s = np.exp([q[t] @ k[u] / math.sqrt(E) for u in range(t + 1)])
                    v = qkv[n, :t + 1, (H + K + g) * E:][:, :E]
                    out[n, t, h * E:][:E] = s / s.sum() @ v
        x = x + out @ w[p + "attention.proj.weight"].T
        y = rms(x, w[p + "norm2.weight"])
        gate = y @ w[p + "feed_forward.gate.weight"].T
        y = gate / (1 + np.exp(-gate)) * (y @ w[p + "feed_forward.up.weight"].T)
        x = x + y @ w[p + "feed_forward.down.weight"].T
    return rms(x, w["norm.weight"]) @ w["head.weight"].T


@pytest.mark.parametrize("options", [
    {}, {"n_kv_heads": 4}, {"n_kv_heads": 1}, {"head_width": 6, "theta": 100.0}, {"tied": True}])
def test_logits_equal_the_papers_formulas(options):
    model, ids = llama(**options).eval(), np.random.default_rng(0).integers(0, 11, (2, 9))
    with minidl.no_grad():
        for p in model.parameters():
            p.mul_(8.0)  # so that attention matters; RMSNorm's weights are 8, then
        got = model(ids).array
    want = oracle(model, ids)
    # float32 through two blocks of sums of 16 to 64 numbers
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_scores_depend_on_the_difference_of_positions_alone():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 1, 8))
    f = frequencies(8)

    def score(t, u):
        turn = [Rotary.apply(minidl.tensor(x), np.cos(p * f), np.sin(p * f)).array
                for x, p in ((q, t), (k, u))]
        return float((turn[0] * turn[1]).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-12)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_the_gradient_of_a_rotation():
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 6))
    angle = np.arange(4)[:, None] * frequencies(6)
    gradcheck(lambda x: Rotary.apply(x, np.cos(angle), np.sin(angle)), x)


def test_llama_3s_scaling_keeps_fast_angles_and_slows_slow_ones():
    plain = frequencies(64, 500000.0)
    scaled = frequencies(64, 500000.0, dict(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192))
    turns = 8192 * plain / (2 * math.pi)
    np.testing.assert_array_equal(scaled[turns >= 4], plain[turns >= 4])
    np.testing.assert_allclose(scaled[turns <= 1], plain[turns <= 1] / 8)
    assert (np.diff(scaled) < 0).all()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("n_kv_heads, head_width", [(4, 4), (2, 6), (1, 4)])
def test_parameters_and_operations_are_those_of_the_formulas(tied, n_kv_heads, head_width):
    shape = dict(vocab_size=11, n_layers=3, width=16, n_heads=4, n_kv_heads=n_kv_heads,
                 head_width=head_width, hidden=20)
    model = nn.Llama(context=7, tied=tied, **shape)
    assert n_parameters(**shape, tied=tied) == sum(p.numel() for p in model.parameters())
    ids = np.random.default_rng(0).integers(0, 11, (2, 7))
    with minidl.profile() as run:
        model(ids).sum().backward()
    for phase, wanted in zip(("forward", "backward"), n_operations(7, **shape), strict=True):
        counted = sum(op["flops"] for op in run.summary["operators"] if op["phase"] == phase)
        assert counted == 2 * wanted, "two texts"


def test_it_learns_to_count_and_generates(device):
    net = llama().to(device)
    opt = optim.AdamW(net.parameters(), lr=1e-2)
    ids = (np.arange(9) + np.arange(11)[:, None]) % 11
    given, wanted = put((ids[:, :-1], ids[:, 1:].reshape(-1)), device)
    for _ in range(60):
        opt.zero_grad()
        loss = F.cross_entropy(net(given).reshape(-1, 11), wanted)
        loss.backward()
        opt.step()
    assert loss.item() < 0.1
    out = net.generate([[3, 4, 5]], 10, temperature=0)
    np.testing.assert_array_equal(out[0], np.arange(3, 13 + 3) % 11)


def test_texts_in_one_row_see_nothing_of_each_other():
    net = llama().eval()
    a, b = np.array([[1, 2, 3]]), np.array([[4, 5, 6, 7]])
    with minidl.no_grad():
        both = net(np.concatenate([a, b], 1), np.array([[0, 1, 2, 0, 1, 2, 3]])).array
        alone = np.concatenate([net(a).array, net(b).array], 1)
    np.testing.assert_allclose(both, alone, rtol=0, atol=1e-6 * np.abs(alone).max())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at most 10 tokens, because .* context .*; got 11"):
        llama()(np.zeros((1, 11), int))
    with pytest.raises(ValueError, match="got n_heads=4, n_kv_heads=3, head_width=4"):
        llama(n_kv_heads=3)
