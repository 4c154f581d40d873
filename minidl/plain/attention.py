"""Attention: each token takes a weighted mean of its own value and the values before it.

In a text of T tokens, each token has three vectors of E numbers. The query says what the token
looks for. The key is compared with the queries of other tokens. The value is what these tokens
take. The vectors are the rows of Q, K and V, each of shape (T, E).

    S = Q K^T / sqrt(E)    (T, T), the scores: S[i, j] is large if query i and key j point in
                           the same direction
    P = softmax(S)         row by row: the weights of a row are not negative, and their sum is 1
    O = P V                (T, E): row i is the mean of the values, with the weights P[i]

            key 0  1  2  3
    query 0     x  .  .  .     The causal mask: token i must not see later tokens, because it is
          1     x  x  .  .     trained to predict them. Where the picture has a point, S is
          2     x  x  x  .     -infinity (-1e30 in this file), so P is exactly 0.
          3     x  x  x  x

A sum of E products with mean 0 has a size of about sqrt(E). So the scores are divided by sqrt(E),
and their size does not depend on E. H heads are H attentions at the same time, so that a token can
look for H different things. Then Q, K and V have the shape (T, H E). Head h uses the columns h E to
(h+1) E of Q, K and V. Each head has T^2 scores, which cost time and memory. The page flash saves
the memory: it never holds all scores at once.

Paper: Vaswani et al., "Attention is all you need", 2017.
This page is the plain version. The real one, minidl/ops/attention.py, adds: blocks of scores
instead of all scores at once, other masks, dropout, half precision, and kernels.
"""

import numpy as np

from minidl.plain.autograd import Tensor


def softmax(s):
    """Returns the softmax along the last axis. Subtracts the largest score first, so that no
    exponential overflows."""
    e = (s - s.array.max(-1, keepdims=True)).exp()
    return e / e.sum(-1)  # sum keeps the axis, with length 1


def causal_mask(n):
    """Returns an (n, n) array: 0 where query i may see key j, -1e30 where j is later than i."""
    return np.triu(np.full((n, n), -1e30), k=1)


def attention(q, k, v):
    """Returns the causal attention. q, k, v and the result have the shape
    (..., T, E): they are stacks of heads."""
    n_tokens, width = q.array.shape[-2:]
    scores = q @ k.swap() / width**0.5  # (..., T, T); swap exchanges the last two axes
    return softmax(scores + causal_mask(n_tokens)) @ v


def split_heads(x, n_heads):
    """Reshapes (T, H E) -> (H, T, E)."""
    n_tokens, width = x.array.shape
    return x.reshape(n_tokens, n_heads, width // n_heads).transpose(1, 0, 2)


def join_heads(x):
    """Reshapes (H, T, E) -> (T, H E)."""
    n_heads, n_tokens, width = x.array.shape
    return x.transpose(1, 0, 2).reshape(n_tokens, n_heads * width)


if __name__ == "__main__":
    v = Tensor([[3.0], [6.0], [12.0]])  # each of three tokens has a vector of one number
    zeros = Tensor(np.zeros((3, 1)))
    print("all keys equal:   ", attention(zeros, zeros, v).array.ravel())

    k = Tensor([[1.0], [-1.0], [0.0]])
    q = Tensor([[100.0], [100.0], [-100.0]])  # the last query fits the key -1 best
    print("clear preferences:", attention(q, k, v).array.round(3).ravel())
