"""The page and the real block of a Llama: the same outputs and gradients."""

import numpy as np
import pytest

import minidl
from minidl.nn.llama import LlamaBlock, Rotary, frequencies
from minidl.plain import transformer
from minidl.plain.autograd import Tensor, grad

T, C, HEADS, HIDDEN, EPS = 6, 8, 2, 12, 1e-5
NAMES = {"norm1": "norm1.weight", "norm2": "norm2.weight", "out": "attention.proj.weight",
         "gate": "feed_forward.gate.weight", "up": "feed_forward.up.weight",
         "down": "feed_forward.down.weight"}


def angles(first=0, n=T, width=C // HEADS):
    angle = (first + np.arange(n))[:, None] * frequencies(width)
    return np.cos(angle), np.sin(angle)


def both():
    """(the page's weights, the real block with the same, in float64)."""
    block = LlamaBlock(C, HEADS, HEADS, C // HEADS, HIDDEN, EPS).double()
    rng = np.random.default_rng(4)
    for p in block.parameters():
        p.data = rng.uniform(0.2, 1, p.shape) * rng.choice([-1, 1], p.shape)
    state = {name: x.numpy() for name, x in block.state_dict().items()}
    # a Linear computes x @ weight^T
    weights = {name: Tensor(state[long].T) for name, long in NAMES.items()}
    parts = np.split(state["attention.qkv.weight"], 3)
    weights.update(zip(("query", "key", "value"), (Tensor(part.T) for part in parts)))
    return weights, block


def test_a_block_and_its_gradients_are_the_real_ones():
    weights, block = both()
    x, g = np.random.default_rng(5).normal(size=(2, T, C))
    leaf = Tensor(x)
    y = transformer.block(leaf, weights, HEADS)
    gradients = dict(zip(["x", *weights], grad((y * g).sum(), [leaf, *weights.values()])))
    real_x = minidl.tensor(x[None], requires_grad=True)
    want = block(real_x, *angles())
    (want * minidl.tensor(g)).sum().backward()
    # float64, sums of at most 12 terms, some ten operations one after the other
    near = dict(rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(y.array, want.detach().numpy()[0], **near)
    np.testing.assert_allclose(gradients["x"].array, real_x.grad.numpy()[0], **near)
    real = {name: p.grad.numpy() for name, p in block.named_parameters()}
    for name, long in NAMES.items():
        np.testing.assert_allclose(gradients[name].array.T, real[long], **near)
    qkv = np.concatenate([gradients[name].array.T for name in ("query", "key", "value")])
    np.testing.assert_allclose(qkv, real["attention.qkv.weight"], **near)


@pytest.mark.parametrize("first", [0, 5])
def test_the_turn_is_the_real_one(first):
    x = np.random.default_rng(6).normal(size=(3, 4, 6))
    want = Rotary.apply(minidl.tensor(x), *angles(first, 4, 6)).numpy()
    np.testing.assert_allclose(transformer.rope(Tensor(x), first).array, want, atol=1e-15)


def test_a_score_depends_on_the_distance_alone():
    q, k = np.random.default_rng(7).normal(size=(2, 1, 1, 6))

    def score(q_at, k_at):
        turned = transformer.rope(Tensor(q), q_at) @ transformer.rope(Tensor(k), k_at).swap()
        return turned.array.item()

    assert score(9, 2) == pytest.approx(score(27, 20), rel=1e-12)
    assert score(9, 2) != pytest.approx(score(9, 3), rel=1e-3)
