"""Activation memory of a GPT, to the byte, and what one node saves beside a chain of small ops."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.memory.saved_bytes import saved_by_op
from minidl.nn import functional as F
from minidl.tensor import Tensor

B, T, C, H, LAYERS, VOCAB = 3, 16, 32, 4, 3, 50


def gpt_loss(fused):
    ids = np.random.default_rng(0).integers(0, VOCAB, (B, T))
    minidl.manual_seed(0)
    net = nn.GPT(VOCAB, T, LAYERS, H, C)
    with minidl.use_fused(fused):
        return F.cross_entropy(net(ids).reshape(-1, VOCAB), ids.reshape(-1))


def test_gpt_saves_what_the_formula_says(needs_compiler):
    tokens = B * T
    assert saved_by_op(gpt_loss(True)) == {
        # a layer: the inputs of qkv, up and down; attention's output, input of proj, counts there
        "Linear": 4 * tokens * C * ((1 + 1 + 1 + 4) * LAYERS + 1),  # and of the head
        "SelfAttention": 4 * tokens * (3 * C + H) * LAYERS,  # qkv, and lse of each head
        "Gelu": 4 * tokens * 4 * C * LAYERS,
        "LayerNorm": 4 * tokens * (C + 2) * (2 * LAYERS + 1),  # x; mean and rstd of a row
        "CrossEntropy": tokens * (4 * VOCAB + 4 + 8),  # logits, lse, classes in 64 bits
        "Embedding": 8 * T,  # positions; the ids are the classes' memory here, counted there
    }


def test_plain_ops_of_a_gpt_save_as_much():
    """They are written to save little: xhat in place of x, the slope of GELU in place of x, no
    scores. So of one GPT both ways hold the same to a hundredth."""
    fused, plain = (minidl.memory.saved_bytes(gpt_loss(f)) for f in (True, False))
    assert fused == pytest.approx(plain, rel=0.01)


def leaf(*shape):
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    # * 1: the result of an op, as an activation is; a leaf would not count
    return Tensor(data, requires_grad=True) * 1.0


def attention_by_hand(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    p = (scores - scores.max(-1, keepdim=True)[0]).exp()
    return p / p.sum(-1, keepdim=True) @ v


def gelu_by_hand(x):
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + u.tanh())


@pytest.mark.parametrize("fused, by_hand, n_inputs, at_most", [
    # (64, 8): q, k, v, o and lse of 64 rows; by hand some 64 x 64 matrices
    (F.scaled_dot_product_attention, attention_by_hand, 3, 4 * (4 * 64 * 8 + 64)),
    (lambda x: F.gelu(x, approximate="tanh"), gelu_by_hand, 1, 4 * 64 * 8),
], ids=["attention", "gelu"])
def test_one_node_saves_less_than_a_chain_of_small_ops(fused, by_hand, n_inputs, at_most):
    inputs = [leaf(64, 8) for _ in range(n_inputs)]
    one, chain = fused(*inputs), by_hand(*inputs)
    np.testing.assert_allclose(one, chain, atol=1e-5)  # float32, numbers near 1
    assert minidl.memory.saved_bytes(one) <= at_most
    assert minidl.memory.saved_bytes(chain) >= 2 * minidl.memory.saved_bytes(one)
