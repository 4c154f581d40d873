"""Attention in blocks against attention in one piece."""

import math

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops import attention
from minidl.ops.dropout import keep_mask

RNG = np.random.default_rng(10)


def qkv(lead, n_queries, n_keys, width=3):
    sizes = (n_queries, width), (n_keys, width), (n_keys, width + 1)
    return [minidl.Tensor(RNG.standard_normal((*lead, *s)), requires_grad=True) for s in sizes]


def naive(q, k, v, mask=None, drop=None):
    """softmax(q k^T / sqrt(E) + mask) * drop @ v, whole matrices, from other ops."""
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    p = (scores if mask is None else scores + mask).softmax(-1)
    return (p if drop is None else p * drop) @ v


def results(f, tensors):
    for t in tensors:
        t.grad = None
    y = f(*tensors)
    y.backward(np.cos(np.arange(y.numel())).reshape(y.shape))
    return [y.numpy(), *(t.grad.numpy() for t in tensors)]


def assert_equal_results(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        # float64: sums of at most 70 terms of size 1 to 10, in another order
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.fixture(params=[(64, 2**17), (4, 1), (3, 100)], ids=["default", "one head", "some heads"])
def blocks(request, monkeypatch):
    """Small blocks bring the borders between them into small tests."""
    monkeypatch.setattr(attention, "BLOCK_ROWS", request.param[0])
    monkeypatch.setattr(attention, "BLOCK_SCORES", request.param[1])


LENGTHS = [(1, 1), (4, 4), (5, 5), (11, 7), (7, 11), (13, 13)]


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
@pytest.mark.parametrize("n_queries, n_keys", LENGTHS)
def test_blocks_equal_one_piece(blocks, lead, n_queries, n_keys):
    tensors = qkv(lead, n_queries, n_keys)
    assert_equal_results(results(F.scaled_dot_product_attention, tensors), results(naive, tensors))


@pytest.mark.parametrize("n_queries, n_keys", LENGTHS)
def test_causal_equals_a_triangular_mask(blocks, n_queries, n_keys):
    tensors = qkv((2, 3), n_queries, n_keys)
    mask = np.where(np.tri(n_queries, n_keys, dtype=bool), 0, -np.inf)
    got = results(lambda *t: F.scaled_dot_product_attention(*t, is_causal=True), tensors)
    assert_equal_results(got, results(lambda *t: naive(*t, mask), tensors))


def test_causal_and_mask_both_apply(blocks):
    tensors = qkv((2, 3), 9, 9)
    mask = RNG.random((2, 1, 9, 9)) < 0.6
    mask[..., 0] = True
    bias = np.where(mask & np.tri(9, dtype=bool), 0, -np.inf)
    got = results(lambda *t: F.scaled_dot_product_attention(*t, mask, is_causal=True), tensors)
    assert_equal_results(got, results(lambda *t: naive(*t, bias), tensors))


def test_a_later_key_does_not_change_an_earlier_output():
    q, k, v = qkv((1, 2), 70, 70)
    before = F.scaled_dot_product_attention(q, k, v, is_causal=True).numpy()
    k.array[..., 40:, :] += 1
    v.array[..., 40:, :] += 1
    after = F.scaled_dot_product_attention(q, k, v, is_causal=True).numpy()
    np.testing.assert_array_equal(before[..., :40, :], after[..., :40, :])
    assert (before[..., 40:, :] != after[..., 40:, :]).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_drops_score_i_by_draw_i(blocks, is_causal):
    tensors = qkv((2, 3), 9, 5)
    state = (4, 0, 17)
    mask = np.where(np.tri(9, 5, dtype=bool), 0, -np.inf) if is_causal else None
    drop = keep_mask(np, state, 0, 2 * 3 * 9 * 5, 0.4).reshape(2, 3, 9, 5) / 0.6

    def ours(*t):
        generator = minidl.Generator()
        generator.set_state(state)
        y = F.scaled_dot_product_attention(*t, None, 0.4, is_causal, generator=generator)
        assert generator.counter == 17 + -(-2 * 3 * 9 * 5 // 8)
        return y

    assert_equal_results(results(ours, tensors), results(lambda *t: naive(*t, mask, drop), tensors))


def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient(blocks):
    tensors = qkv((2,), 3, 5)
    mask = np.ones((3, 5), bool)
    mask[1] = False
    y, gq, gk, gv = results(lambda *t: F.scaled_dot_product_attention(*t, mask), tensors)
    assert (y[:, 1] == 0).all() and (gq[:, 1] == 0).all()
    assert all(np.isfinite(a).all() for a in (y, gq, gk, gv))
    assert (y[:, 0] != 0).all() and (gq[:, 2] != 0).all()


def test_large_scores_do_not_overflow():
    q, k, v = qkv((2,), 5, 5)
    for causal in (False, True):
        got = results(lambda *t, c=causal: F.scaled_dot_product_attention(*t, None, 0, c, 1e4),
                      (q, k, v))
        assert all(np.isfinite(a).all() for a in got)


def test_scores_are_not_kept():
    x = [t * 1.0 for t in qkv((1, 2), 100, 100, 4)]
    y = F.scaled_dot_product_attention(*x, is_causal=True)
    kept = sum(a.nbytes for a in y.grad_fn.saved if a is not None)
    assert kept == sum(t.nbytes for t in x) + y.nbytes + 2 * 100 * 8  # lse: a number a row


def test_output_lies_as_the_next_layer_wants_it():
    y = F.scaled_dot_product_attention(*qkv((2, 3), 5, 5))
    assert y.numpy().swapaxes(1, 2).flags.c_contiguous  # (B, L, H, Ev): merging heads is free


@pytest.mark.parametrize("fused", [True, False])
def test_fp16_is_computed_in_fp32(fused):
    q, k, v = (minidl.Tensor(t.numpy().astype(np.float16)) for t in qkv((1, 2), 9, 9))
    wide = [minidl.Tensor(t.numpy().astype(np.float32)) for t in (q, k, v)]
    with minidl.use_fused(fused):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        wanted = F.scaled_dot_product_attention(*wide, is_causal=True).numpy().astype(np.float16)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.numpy(), wanted, rtol=2**-10, atol=2**-12)  # one rounding


def test_errors_name_the_shapes():
    q, k, v = qkv((2,), 4, 5)
    with pytest.raises(ValueError, match=r"got .*query \(2, 4, 3\), key \(2, 5, 4\)"):
        F.scaled_dot_product_attention(q, v, k)
    with pytest.raises(ValueError, match=r"attn_mask \(4, 4\); the dimensions before"):
        F.scaled_dot_product_attention(q, k, v, np.ones((4, 4), bool))
    with pytest.raises(TypeError, match="query is float64, value is float32"):
        F.scaled_dot_product_attention(q, k, minidl.Tensor(v.numpy().astype(np.float32)))
    with pytest.raises(ValueError, match="p, the probability"):
        F.scaled_dot_product_attention(q, k, v, dropout_p=2)
