"""A transformer block, as in Llama: attention mixes the tokens, then a network works on each token.

    x ──┬──► RMSNorm ──► attention ──► + ──┬──► RMSNorm ──► SwiGLU ──► + ──► y     x, y (T, C)
        └──────────────────────────────┘   └───────────────────────────┘

x has T rows, one for each token. A row has C numbers. Attention is causal, and has H heads of
E = C / H numbers (page attention). The two paths around attention and SwiGLU (residual connections)
let gradients pass unchanged. A model has many such blocks.

    RMSNorm    x / sqrt(mean of x^2) * weight, for each token by itself. The result does not depend
               on the length of the token's vector
    SwiGLU     (silu(x @ gate) * (x @ up)) @ down,  silu(a) = a / (1 + e^-a): one hidden layer,
               the same network for each token. x @ gate decides how much of x @ up passes
    RoPE       rotates the query and the key of token t. Without RoPE, a score would not depend on
               the places of the two tokens. The E numbers of a head are E/2 points (a_i, b_i). a is
               the first half, and b is the second half. Point i turns by t * theta_i, where
               theta_i = 10000^(-2i/E):

                   a' = a cos - b sin        b' = b cos + a sin

               The dot product of two rotated vectors depends on the difference of their angles. So
               a score depends on how far apart two tokens are, and not on their positions.

In the code a product with a constant matrix turns (a, b) into (-b, a): it exchanges the halves. So
the code needs only the operations of the page autograd, and each of them has a gradient.

Papers: Touvron et al., "LLaMA", 2023; Su et al., "RoFormer" (RoPE), 2021; Shazeer, "GLU variants
improve transformer" (SwiGLU), 2020; Zhang & Sennrich, "Root mean square layer normalization", 2019.
This page is the plain version. The real one, minidl/nn/llama.py, adds: a batch of texts, fewer
heads of keys than of queries, longer contexts, the vectors of the tokens at the beginning, and the
scores of the next token at the end.
"""

import numpy as np

from minidl.plain.attention import attention, join_heads, split_heads
from minidl.plain.autograd import Tensor


def rms_norm(x, weight, eps=1e-5):
    """Scales each token's vector to a mean square of 1. x (T, C), weight (C,) -> (T, C)."""
    mean_square = (x * x).sum(-1) / x.array.shape[-1]  # (T, 1): sum keeps the axis
    return x * (mean_square + eps)**-0.5 * weight


def swiglu(x, gate, up, down):
    """Returns (silu(x @ gate) * (x @ up)) @ down. x (T, C) -> (T, C). gate and up: (C, hidden),
    down: (hidden, C)."""
    a = x @ gate
    silu = a / ((-a).exp() + 1)
    return (silu * (x @ up)) @ down


def rope(x, first=0):
    """Returns x (H, T, E), with token t rotated for the position first + t."""
    _, n_tokens, width = x.array.shape
    theta = 10000.0 ** (-np.arange(0, width, 2) / width)  # (E / 2,)
    angle = (first + np.arange(n_tokens))[:, None] * theta  # (T, E / 2)
    cos, sin = np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)  # (T, E)
    one, zero = np.eye(width // 2), np.zeros((width // 2, width // 2))
    swap_halves = np.block([[zero, one], [-one, zero]])  # (a, b) @ swap_halves = (-b, a)
    return x * cos + x @ swap_halves * sin


def block(x, weights, n_heads):
    """Returns the result of one block. x (T, C) -> (T, C). weights: a dict of Tensors. Its
    matrices "query", "key", "value" and "out" have the shape (C, C)."""
    w = weights
    normed = rms_norm(x, w["norm1"])
    q, k, v = (split_heads(normed @ w[name], n_heads) for name in ("query", "key", "value"))
    x = x + join_heads(attention(rope(q), rope(k), v)) @ w["out"]
    return x + swiglu(rms_norm(x, w["norm2"]), w["gate"], w["up"], w["down"])


if __name__ == "__main__":
    print("RMSNorm:", rms_norm(Tensor([[3.0, 4.0], [30.0, 40.0]]), Tensor([1, 1])).array.round(3))

    arrow = Tensor([[[1.0, 0.0]]])  # at position p, rope turns the point (1, 0) by p radians
    for q_at, k_at in [(0, 0), (1, 0), (8, 7), (3, 0)]:
        score = rope(arrow, q_at) @ rope(arrow, k_at).swap()
        print(f"query at {q_at}, key at {k_at}: score", round(score.array.item(), 3))
