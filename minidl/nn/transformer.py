"""Multi-head attention and the transformer block.

    x ──┬─► norm ─► attention ─► (+) ──┬─► norm ─► Linear 4C ─► GELU ─► Linear C ─► (+) ─► y
        └───────────────────────►      └────────────────────────────────────────►
    attention: softmax(q k^T / sqrt(head width)) v, for each head; a head has C / n_heads columns

Sources: Vaswani et al. 2017 (arXiv 1706.03762); pre-norm order: Radford et al. 2019 (GPT-2).
Test: tests/nn/test_transformer.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.layers import Dropout, Linear, empty_parameter
from minidl.nn.module import Module
from minidl.nn.norm import LayerNorm
from minidl.tensor import Tensor, wrapped

if TYPE_CHECKING:
    from typing import Any

    from minidl.hints import Array
    from minidl.random import Generator


class MultiheadAttention(Module):
    """Multi-head attention, with the names and the arguments of PyTorch's layer. Parameters:
    in_proj_weight (3E, E), in_proj_bias (3E,), out_proj.

    forward(query, key, value) returns (output, weights). weights are the attention weights, or None
    with need_weights=False. Inputs and output: (L, N, E), or (N, L, E) with batch_first, for N
    texts of L tokens with E = embed_dim. Keys and values may have a length S that differs from L.
    Masks: attn_mask (L, S) or (N * heads, L, S), key_padding_mask (N, S). If an element of a bool
    mask is True, the query must not attend to this key, as in PyTorch's layer. A float mask is
    added to the scores."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *,
                 batch_first: bool = False, generator: Generator | None = None):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} must be divisible by num_heads {num_heads}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.dropout, self.batch_first = dropout, batch_first
        self.in_proj_weight = empty_parameter(3 * embed_dim, embed_dim)
        self.register_parameter("in_proj_bias", empty_parameter(3 * embed_dim) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, generator=generator)
        init.xavier_uniform_(self.in_proj_weight, generator=generator)
        if bias:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def forward(self, query: Array, key: Array, value: Array, key_padding_mask: Array | None = None,
                need_weights: bool = True, attn_mask: Array | None = None,
                average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        query, key, value = (wrapped(x) for x in (query, key, value))
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        E, H, bias = self.embed_dim, self.num_heads, self.in_proj_bias
        q, k, v = (split_heads(F.linear(x, self.in_proj_weight[i * E:(i + 1) * E],
                                        None if bias is None else bias[i * E:(i + 1) * E]), H)
                   for i, x in enumerate((query, key, value)))  # (N, H, L or S, E / H)
        mask = _additive_mask(q, k, attn_mask, key_padding_mask, is_causal)
        dropout_p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:  # step by step, because the fused op does not return the weights
            scores = q @ k.transpose(-2, -1) / math.sqrt(E // H)
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            y = F.dropout(weights, dropout_p, self.training) @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
        N, _, L, _ = y.shape
        y = self.out_proj(y.transpose(1, 2).reshape(N, L, E))  # joins the columns of all heads
        return (y if self.batch_first else y.transpose(0, 1)), weights


def split_heads(x, n_heads):
    """Returns a view of x: (N, L, C) -> (N, n_heads, L, C / n_heads)."""
    N, L, C = x.shape
    return x.reshape(N, L, n_heads, C // n_heads).transpose(1, 2)


def _additive_mask(q, k, attn_mask, key_padding_mask, is_causal):
    """Returns all masks as one float array that broadcasts to (N, H, L, S), or None if there is no
    mask. It is -inf where a bool mask or is_causal forbids attention."""
    xp, dtype = q._xp, q.dtype
    N, H, L, S = *q.shape[:3], k.shape[2]

    def additive(mask):
        mask = mask.array if isinstance(mask, Tensor) else xp.asarray(mask)
        if mask.dtype != np.bool_:
            return mask.astype(dtype)
        return xp.where(mask, xp.asarray(-np.inf, dtype), xp.asarray(0, dtype))

    total = None
    if attn_mask is not None:
        total = additive(attn_mask)
        total = total.reshape(N, H, L, S) if total.ndim == 3 else total
    elif is_causal:
        total = additive(xp.triu(xp.ones((L, S), bool), 1))
    if key_padding_mask is not None:
        padding = additive(key_padding_mask)[:, None, None, :]
        total = padding if total is None else total + padding
    return total


class CausalSelfAttention(Module):
    """Each position attends to itself and to all positions before it.  x (N, T, C) -> (N, T, C)."""

    # parallel/model/context.py replaces `attend` if a text is divided among ranks.
    attend = staticmethod(F.self_attention)

    def __init__(self, width: int, n_heads: int, dropout: float = 0.0, bias: bool = True,
                 generator: Generator | None = None):
        super().__init__()
        if width % n_heads:
            raise ValueError(f"width {width} must be divisible by n_heads {n_heads}")
        self.n_heads, self.dropout = n_heads, dropout
        self.qkv = Linear(width, 3 * width, bias, generator=generator)
        self.proj = Linear(width, width, bias, generator=generator)

    def forward(self, x: Array, **mask: Any) -> Tensor:
        """Returns a Tensor (N, T, C). mask: the keyword argument attn_mask of F.self_attention, or
        nothing. This mask is used together with the causal mask."""
        y = self.attend(self.qkv(x), self.n_heads, is_causal=True,
                        dropout_p=self.dropout if self.training else 0.0, **mask)
        return self.proj(y)


class FeedForward(Module):
    """x (..., C) -> GELU(x W1) W2, (..., C). The hidden width is 4C."""

    def __init__(self, width: int, bias: bool = True, generator: Generator | None = None):
        super().__init__()
        self.up = Linear(width, 4 * width, bias, generator=generator)
        self.down = Linear(4 * width, width, bias, generator=generator)

    def forward(self, x: Array) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class TransformerBlock(Module):
    """x = x + attention(norm1(x)), then x = x + feed_forward(norm2(x)).  x (N, T, C) -> (N, T, C).
    feed_forward(width, bias, generator) makes the feed-forward module. The default is FeedForward.
    nn.MoE is another choice (moe.py)."""

    def __init__(self, width: int, n_heads: int, dropout: float = 0.0, bias: bool = True,
                 generator: Generator | None = None, feed_forward: Callable = FeedForward):
        super().__init__()
        self.norm1 = LayerNorm(width, bias=bias)
        self.attention = CausalSelfAttention(width, n_heads, dropout, bias, generator)
        self.norm2 = LayerNorm(width, bias=bias)
        self.feed_forward = feed_forward(width, bias, generator)
        self.drop = Dropout(dropout)

    def forward(self, x: Array, **mask: Any) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x), **mask))
        return x + self.drop(self.feed_forward(self.norm2(x)))
