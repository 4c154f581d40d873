"""The page and the real attention: the same outputs and gradients."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.plain import attention
from minidl.plain.autograd import Tensor, grad


@pytest.mark.parametrize("shape", [(3, 7, 4), (1, 1, 2), (2, 130, 3)])  # 130: several blocks
def test_outputs_and_gradients_are_the_real_ones(shape):
    q, k, v, g = np.random.default_rng(2).normal(size=(4, *shape))
    leaves = [Tensor(x) for x in (q, k, v)]
    y = attention.attention(*leaves)
    gradients = grad((y * g).sum(), leaves)
    theirs = [minidl.tensor(x[None], requires_grad=True) for x in (q, k, v)]
    want = F.scaled_dot_product_attention(*theirs, is_causal=True)
    (want * minidl.tensor(g)).sum().backward()
    # float64; sums of at most 130 terms in another order
    np.testing.assert_allclose(y.array, want.detach().numpy()[0], rtol=1e-12, atol=1e-14)
    for ours, x in zip(gradients, theirs):
        np.testing.assert_allclose(ours.array, x.grad.numpy()[0], rtol=1e-11, atol=1e-13)


def test_a_token_does_not_see_later_ones():
    q, k, v = np.random.default_rng(2).normal(size=(3, 5, 4))
    before = attention.attention(Tensor(q), Tensor(k), Tensor(v)).array
    k[3:] += 1
    v[3:] += 1
    after = attention.attention(Tensor(q), Tensor(k), Tensor(v)).array
    np.testing.assert_array_equal(before[:3], after[:3])
    assert (before[3:] != after[3:]).all()


def test_heads_are_columns():
    x = np.arange(24.0).reshape(3, 8)
    heads = attention.split_heads(Tensor(x), 2)
    np.testing.assert_array_equal(heads.array[1], x[:, 4:])
    np.testing.assert_array_equal(attention.join_heads(heads).array, x)


def test_large_scores_do_not_overflow():
    p = attention.softmax(Tensor([[1000.0, 1000.0, 0.0], [-1000.0, -1000.0, -2000.0]])).array
    np.testing.assert_array_equal(p, [[0.5, 0.5, 0], [0.5, 0.5, 0]])
