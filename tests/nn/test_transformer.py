"""Attention layers equal PyTorch's with the same weights; the block is causal."""

import numpy as np
import pytest

import minidl
from minidl import nn
from tests.devices import host, put


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["none", "bool", "float", "padding"])
def test_multihead_attention_equals_pytorchs(need_weights, batch_first, masked, device):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    torch.manual_seed(0)
    L, S, N, E, H = 5, 4, 3, 8, 2
    theirs = torch.nn.MultiheadAttention(E, H, batch_first=batch_first)
    ours = nn.MultiheadAttention(E, H, batch_first=batch_first)
    ours.load_state_dict(theirs.state_dict())
    ours.to(device)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((N, L, E) if batch_first else (L, N, E)).astype(np.float32)
    kv = rng.standard_normal((N, S, E) if batch_first else (S, N, E)).astype(np.float32)
    masks = {}
    if masked == "bool":
        masks["attn_mask"] = np.triu(np.ones((L, S), bool), 1)
    elif masked == "float":
        masks["attn_mask"] = rng.standard_normal((N * H, L, S)).astype(np.float32)
    elif masked == "padding":
        masks["key_padding_mask"] = np.arange(S) >= np.array([[4], [2], [3]])
    a = minidl.tensor(q, device=device, requires_grad=True)
    b = torch.tensor(q, requires_grad=True)
    both = minidl.tensor(kv, device=device)
    y, w = ours(a, both, both, need_weights=need_weights,
                **{k: put(m, device) for k, m in masks.items()})
    z, v = theirs(b, torch.tensor(kv), torch.tensor(kv), need_weights=need_weights,
                  **{k: torch.tensor(m) for k, m in masks.items()})
    g = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(put(g, device))
    z.backward(torch.tensor(g))
    close = dict(rtol=1e-5, atol=1e-6)  # float32, dot products of 8 terms
    np.testing.assert_allclose(host(y), z.detach().numpy(), **close)
    np.testing.assert_allclose(host(a.grad), b.grad.numpy(), **close)
    gw, wanted = host(ours.in_proj_weight.grad), theirs.in_proj_weight.grad.numpy()
    np.testing.assert_allclose(gw, wanted, **close)
    if need_weights:
        np.testing.assert_allclose(host(w), v.detach().numpy(), **close)
    else:
        assert w is None and v is None


def test_a_block_equals_pytorchs_layer_that_normalizes_first(device):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    minidl.manual_seed(0)
    C, T = 8, 5
    block = nn.TransformerBlock(C, 2)
    theirs = torch.nn.TransformerEncoderLayer(
        C, 2, 4 * C, dropout=0.0, batch_first=True, norm_first=True,
        activation=lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    names = {"norm1": "norm1", "norm2": "norm2", "attention.proj": "self_attn.out_proj",
             "feed_forward.up": "linear1", "feed_forward.down": "linear2"}
    state = {f"{theirs}.{p}": torch.tensor(block.state_dict()[f"{ours}.{p}"])
             for ours, theirs in names.items() for p in ("weight", "bias")}
    for p in ("weight", "bias"):
        state[f"self_attn.in_proj_{p}"] = torch.tensor(block.state_dict()[f"attention.qkv.{p}"])
    theirs.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((2, T, C)).astype(np.float32)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(T)
    wanted = theirs(torch.tensor(x), src_mask=mask, is_causal=True).detach().numpy()
    # float32: a dozen operations, sums of up to 32 terms
    y = block.to(device)(minidl.tensor(x, device=device))
    np.testing.assert_allclose(host(y), wanted, rtol=1e-5, atol=1e-5)


def test_a_block_does_not_look_ahead():
    minidl.manual_seed(0)
    block = nn.TransformerBlock(16, 4)
    x = minidl.randn(2, 6, 16)
    y = block(x).array
    changed = x.array.copy()
    changed[:, 4:] += 1
    z = block(minidl.tensor(changed)).array
    np.testing.assert_array_equal(y[:, :4], z[:, :4])
    assert (y[:, 4:] != z[:, 4:]).any()


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_drops_in_evaluation(fused):
    minidl.manual_seed(0)
    x = minidl.randn(2, 6, 16)
    block = nn.TransformerBlock(16, 4, dropout=0.5)
    layer = nn.MultiheadAttention(16, 4, dropout=0.5)
    with minidl.use_fused(fused):
        for run in (block, *(lambda x, w=w: layer(x, x, x, need_weights=w)[0] for w in (0, 1))):
            for net in (block, layer):
                net.train()
            assert (run(x).array != run(x).array).any()
            for net in (block, layer):
                net.eval()
            np.testing.assert_array_equal(run(x).array, run(x).array)


def test_head_count_must_divide_the_width():
    with pytest.raises(ValueError, match="width 10 must be divisible by n_heads 4"):
        nn.CausalSelfAttention(10, 4)
