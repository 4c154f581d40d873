"""Llama: a GPT with rotary positions, RMSNorm, SwiGLU and fewer heads of keys than of queries.

The plain form of a block: minidl/plain/transformer.py. This file adds batches and grouped heads.
The rotation (class Rotary) saves neither its input nor its output for backward. The texts may be
longer than the texts in training (see the function `frequencies`).

Grouped heads: there are n_heads heads of queries, but only n_kv_heads heads of keys and values. So
n_heads / n_kv_heads heads of queries share one head of keys and values. The cache of keys and
values has 2 n_kv_heads E floats for each token and layer, where E is the width of a head. Without
sharing, this number is 2 n_heads E.

Sources: Su et al. 2021 (arXiv 2104.09864, rotary); Ainslie et al. 2023 (arXiv 2305.13245, grouped);
Shazeer 2020 (arXiv 2002.05202, SwiGLU); Touvron et al. 2023 (arXiv 2302.13971).
Test: tests/nn/test_llama.py   Tutorial: tutorials/28_transformer.py
Loaded by: snapshot/hugging_face.py   Generates text: infer/decoder.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.containers import ModuleList
from minidl.nn.layers import Embedding, Linear
from minidl.nn.models import GPT
from minidl.nn.module import Module
from minidl.nn.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from minidl.hints import Array
    from minidl.random import Generator
    from minidl.tensor import Tensor


class Rotary(Function):
    """Rotates x (B, H, T, E) by angles. cos, sin: the cosines and sines of the angles, (T, E / 2)
    or (B, 1, T, E / 2).
    Saves neither x nor y: backward rotates the gradient by the opposite angles."""

    def forward(self, x, cos, sin):
        self.cos, self.sin = cos, sin
        return turned(self.xp, x, cos, sin)

    def backward(self, gy):
        return turned(self.xp, gy, self.cos, -self.sin), None, None


def turned(xp, x, cos, sin):
    a, b = x[..., :x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return xp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype, copy=False)


def frequencies(width, theta=10000.0, scaling=None):
    """Returns an array (width / 2,) of float64: how much each angle grows from one position to the
    next. Without scaling, angle i grows by theta ** (-2 i / width). width: the width of a head.

    scaling: None, or a dict for Llama 3's rule. The rule is for contexts `factor` times as long as
    the original context. The keys of the dict are factor, low_freq_factor, high_freq_factor and
    original_max_position_embeddings. If an angle makes more than high_freq_factor turns in the
    original context, it is not scaled. If an angle makes fewer than low_freq_factor turns, it grows
    `factor` times more slowly. Between these limits, the growth is a weighted mean."""
    f = theta ** -(np.arange(0, width, 2) / width)
    if scaling is None:
        return f
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor",
                                                     "high_freq_factor"))
    turns = f * scaling["original_max_position_embeddings"] / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return f * (kept + (1 - kept) / factor)


def n_parameters(vocab_size: int, n_layers: int, width: int, n_heads: int, n_kv_heads: int,
                 head_width: int, hidden: int, tied: bool = False) -> int:
    """Returns the number of parameters of a Llama of these sizes: the elements of all its
    tensors."""
    embedding = vocab_size * width
    norms = (2 * n_layers + 1) * width
    matrices = n_layers * _block_matrices(width, n_heads, n_kv_heads, head_width, hidden)
    return matrices + norms + embedding * (1 if tied else 2)


def n_operations(n_tokens: int, vocab_size: int, n_layers: int, width: int, n_heads: int,
                 n_kv_heads: int, head_width: int, hidden: int) -> tuple[int, int]:
    """Returns two numbers of floating-point operations, (forward, backward). They count the matrix
    products and the attention for one text of n_tokens tokens.

    Matrices: for each token, each element of a matrix takes part in one multiplication and one
    addition. Backward does this twice: once for the gradient of the input, and once for the
    gradient of the weight.
    Attention: a query may see the keys up to its own position. For each such pair of a query and a
    key, forward computes two products of length head_width. Backward computes five, because it
    computes the scores again."""
    matrices = n_layers * _block_matrices(width, n_heads, n_kv_heads, head_width, hidden)
    products = 2 * n_tokens * (matrices + vocab_size * width)
    pairs = n_tokens * (n_tokens + 1) // 2
    one = 2 * n_layers * n_heads * head_width * pairs
    return products + 2 * one, 2 * products + 5 * one


def _block_matrices(width, n_heads, n_kv_heads, head_width, hidden):
    """Returns how many elements the matrices of one block have: qkv, proj, gate, up and down."""
    return 2 * (n_heads + n_kv_heads) * head_width * width + 3 * hidden * width


class LlamaAttention(Module):
    """Causal attention with grouped heads.  x (N, T, C), cos and sin as for Rotary -> (N, T, C).
    The output of `qkv` has the heads of the queries first, then the heads of the keys, then the
    heads of the values."""

    def __init__(self, width, n_heads, n_kv_heads, head_width, generator=None):
        super().__init__()
        if n_heads % n_kv_heads or head_width % 2:
            raise ValueError("Llama wants n_heads divisible by n_kv_heads, and an even head_width; "
                             f"got n_heads={n_heads}, n_kv_heads={n_kv_heads}, "
                             f"head_width={head_width}")
        self.n_heads, self.n_kv_heads, self.head_width = n_heads, n_kv_heads, head_width
        self.qkv = Linear(width, (n_heads + 2 * n_kv_heads) * head_width, False,
                          generator=generator)
        self.proj = Linear(n_heads * head_width, width, False, generator=generator)

    def forward(self, x, cos, sin, attn_mask=None):
        (N, T, _), H, K, E = x.shape, self.n_heads, self.n_kv_heads, self.head_width
        q, k, v = (part.reshape(N, T, -1, E).transpose(1, 2)
                   for part in self.qkv(x).split([H * E, K * E, K * E], -1))
        q, k = Rotary.apply(q, cos, sin), Rotary.apply(k, cos, sin)
        if H > K:  # H / K query heads use the same head of keys and values
            k, v = (y.unsqueeze(2).expand(N, K, H // K, T, E).reshape(N, H, T, E) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(N, T, H * E))


class SwiGLU(Module):
    """x (..., C) -> (silu(x W_gate) * (x W_up)) W_down, (..., C)."""

    def __init__(self, width, hidden, generator=None):
        super().__init__()
        self.gate, self.up = (Linear(width, hidden, False, generator=generator) for _ in range(2))
        self.down = Linear(hidden, width, False, generator=generator)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(Module):
    def __init__(self, width, n_heads, n_kv_heads, head_width, hidden, eps, generator=None):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width, eps), RMSNorm(width, eps)
        self.attention = LlamaAttention(width, n_heads, n_kv_heads, head_width, generator)
        self.feed_forward = SwiGLU(width, hidden, generator)

    def forward(self, x, cos, sin, **mask):
        x = x + self.attention(self.norm1(x), cos, sin, **mask)
        return x + self.feed_forward(self.norm2(x))


class Llama(Module):
    """ids (N, T), integers -> logits (N, T, vocab_size). T is at most `context`.

    n_kv_heads: the default is n_heads.
    hidden: the width inside SwiGLU. The default is 8/3 width, rounded up to a multiple of 64.
    head_width: the default is width / n_heads.
    theta, scaling: the arguments of frequencies().
    tied: if True, the output layer and the embedding share one weight.
    The argument `positions` of forward(), and the method generate(), are the same as in GPT."""

    def __init__(self, vocab_size: int, context: int, n_layers: int = 4, n_heads: int = 8,
                 width: int = 256, n_kv_heads: int | None = None, hidden: int | None = None,
                 head_width: int | None = None, theta: float = 10000.0,
                 scaling: Mapping[str, Any] | None = None, eps: float = 1e-5, tied: bool = False,
                 generator: Generator | None = None):
        super().__init__()
        self.context, self.head_width = context, head_width or width // n_heads
        self.frequencies = frequencies(self.head_width, theta, scaling)
        hidden = hidden or -(-8 * width // 192) * 64
        self.token = Embedding(vocab_size, width, generator=generator)
        self.blocks = ModuleList(
            LlamaBlock(width, n_heads, n_kv_heads or n_heads, self.head_width, hidden, eps,
                       generator) for _ in range(n_layers))
        self.norm = RMSNorm(width, eps)
        self.head = Linear(width, vocab_size, bias=False, generator=generator)
        for p in self.parameters():
            if p.ndim == 2:
                init.normal_(p, std=0.02, generator=generator)
        if tied:
            self.head.weight = self.token.weight

    generate = GPT.generate  # this method uses only attributes that Llama also has

    def forward(self, ids: Array, positions: Array | None = None) -> Tensor:
        T, mask, xp = ids.shape[-1], {}, self.token.weight._xp
        if T > self.context:
            raise ValueError(f"Llama: a text can have at most {self.context} tokens, because this "
                             f"is the context of the model; got {T}")
        if positions is None:
            positions = np.arange(T)
        else:
            positions = backend.array_of(positions)
            mask["attn_mask"] = GPT.one_text(positions)
            positions = positions[:, None]  # (N, 1, T): the same for all heads
        cos, sin = self.angles(xp, positions)
        x = self.token(ids)
        for block in self.blocks:
            x = block(x, cos, sin, **mask)
        return self.head(self.norm(x))

    def angles(self, xp, positions):
        """Returns (cos, sin) of the angles at these positions. positions (...,) -> two arrays
        (..., E / 2), float32."""
        angle = xp.asarray(positions)[..., None] * xp.asarray(self.frequencies)
        return xp.cos(angle).astype(np.float32), xp.sin(angle).astype(np.float32)
