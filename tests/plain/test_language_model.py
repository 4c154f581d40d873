"""The page's model: differences of its loss, the same model in PyTorch, and the real Llama."""

import numpy as np
import pytest

import minidl
from minidl.nn.llama import Llama
from minidl.plain import language_model as page
from minidl.plain.autograd import Tensor, grad

# vocabulary, width, heads, hidden, blocks, tokens; one token, one head, one block, odd sizes
SIZES = [(5, 8, 2, 7, 2, 6), (2, 2, 1, 1, 1, 1), (3, 6, 1, 5, 1, 3), (4, 12, 3, 2, 3, 1)]
sizes = pytest.mark.parametrize("v, width, heads, hidden, n_blocks, n", SIZES)
LAYERS = {"norm1": "norm1.weight", "norm2": "norm2.weight", "out": "attention.proj.weight",
          "gate": "feed_forward.gate.weight", "up": "feed_forward.up.weight",
          "down": "feed_forward.down.weight"}


def setting(v, width, hidden, n_blocks, n):
    """Returns a model without equal weights, and n + 1 ids."""
    rng = np.random.default_rng(n + width)
    model = page.new_model(rng, v, width, hidden, n_blocks)
    for w in page.weights_of(model):
        w.array *= rng.uniform(0.5, 1.5, w.array.shape)
    return model, rng.integers(0, v, n + 1)


@sizes
def test_gradients_are_finite_differences_of_the_loss(v, width, heads, hidden, n_blocks, n):
    model, ids = setting(v, width, hidden, n_blocks, n)
    weights, rng, h = page.weights_of(model), np.random.default_rng(0), 1e-5
    for w, g in zip(weights, grad(page.loss(model, ids, heads), weights)):
        direction = rng.normal(size=w.array.shape)
        ends = []
        for sign in (1, -1):
            w.array += sign * h * direction
            ends.append(page.loss(model, ids, heads).array.item())
            w.array -= sign * h * direction
        slope = (ends[0] - ends[1]) / (2 * h)
        # the formula's error is about h^2, the rounding of the loss about 1e-16 / h
        assert (g.array * direction).sum() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_the_loss_of_a_model_that_is_known():
    """Without blocks and with equal scores the loss is log(V). With one large score it is 0 where
    the guess is right."""
    model = page.new_model(np.random.default_rng(0), 3, 4, 4, 0)
    model["head"] = Tensor(np.zeros((4, 3)))
    assert page.loss(model, np.array([0, 1]), 1).array.item() == pytest.approx(np.log(3))
    model["token"] = Tensor(np.eye(3, 4))
    after = Tensor(np.zeros((4, 3)))
    for token, following in (0, 2), (1, 0), (2, 1):
        after.array[token, following] = 100
    model["head"] = after
    assert page.loss(model, np.array([0, 2, 1, 0]), 1).array.item() == pytest.approx(0, abs=1e-30)
    assert page.loss(model, np.array([0, 0]), 1).array.item() > 50
    rng = np.random.default_rng(1)
    assert page.write(model, np.array([0]), 1, 5, 1.0, rng) == [0, 2, 1, 0, 2, 1]


@sizes
def test_loss_and_gradients_are_those_of_pytorch(v, width, heads, hidden, n_blocks, n):
    torch = pytest.importorskip("torch", reason="compared with PyTorch")
    F = torch.nn.functional
    model, ids = setting(v, width, hidden, n_blocks, n)
    weights = page.weights_of(model)
    theirs = {id(w): torch.tensor(w.array.tolist(), dtype=torch.float64, requires_grad=True)
              for w in weights}
    e = width // heads

    def norm(x, w):
        return F.rms_norm(x, (width,), theirs[id(w)], eps=1e-5)

    def turned(x):
        """As complex numbers: point i of token t is multiplied by e^(i t theta)."""
        angle = torch.outer(torch.arange(n).double(),
                            10000.0 ** (-torch.arange(e // 2).double() * 2 / e))
        z = torch.complex(x[..., :e // 2], x[..., e // 2:])
        z = z * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag], -1)

    x = theirs[id(model["token"])][ids[:-1].tolist()]
    for b in model["blocks"]:
        w = {name: theirs[id(weight)] for name, weight in b.items()}
        y = norm(x, b["norm1"])
        q, k, val = ((y @ w[name]).view(n, heads, e).transpose(0, 1)
                     for name in ("query", "key", "value"))
        o = F.scaled_dot_product_attention(turned(q), turned(k), val, is_causal=True)
        x = x + o.transpose(0, 1).reshape(n, width) @ w["out"]
        y = norm(x, b["norm2"])
        x = x + (F.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
    logits = norm(x, model["norm"]) @ theirs[id(model["head"])]
    want = F.cross_entropy(logits, torch.tensor(ids[1:].tolist()))
    want.backward()
    loss = page.loss(model, ids, heads)
    assert loss.array.item() == pytest.approx(want.item(), rel=1e-12)
    for w, g in zip(weights, grad(loss, weights)):  # float64, some thirty operations
        np.testing.assert_allclose(g.array, np.array(theirs[id(w)].grad.tolist()),
                                   rtol=1e-9, atol=1e-12)


@sizes
def test_the_scores_are_the_real_llamas(v, width, heads, hidden, n_blocks, n):
    model, ids = setting(v, width, hidden, n_blocks, n)
    real = Llama(v, n, n_blocks, heads, width, hidden=hidden).double()
    state = {"token.weight": model["token"].array, "norm.weight": model["norm"].array,
             "head.weight": model["head"].array.T}
    for i, b in enumerate(model["blocks"]):
        qkv = [b[name].array.T for name in ("query", "key", "value")]
        state[f"blocks.{i}.attention.qkv.weight"] = np.concatenate(qkv)
        for name, long in LAYERS.items():
            state[f"blocks.{i}.{long}"] = b[name].array.T
    named = dict(real.named_parameters())
    assert set(named) == set(state)
    for name, p in named.items():
        p.data = np.ascontiguousarray(state[name])
    want = real(ids[None, :-1]).detach().numpy()[0]
    got = page.scores(model, ids[:-1], heads).array
    # the real one's angles are float32: 6e-8 of scores of size 1 to 10
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    loss = minidl.nn.functional.cross_entropy(minidl.tensor(want), minidl.tensor(ids[1:]))
    assert page.loss(model, ids, heads).array.item() == pytest.approx(loss.item(), abs=1e-5)


def test_training_learns_an_alternation_and_writes_it():
    ids = np.array([0, 1] * 10)
    rng = np.random.default_rng(0)
    model = page.new_model(rng, 2, width=4, hidden=4, n_blocks=1)
    losses = page.train(model, ids, 1, n_steps=60, length=1, lr=0.05, rng=rng)
    assert losses[-1] < 0.05 < losses[0] and len(losses) == 60
    assert page.write(model, [0], 1, 5, 0.1, rng) == [0, 1, 0, 1, 0, 1]
    assert len(set(page.write(model, [0], 1, 40, 1e9, rng))) == 2  # very hot: any character
