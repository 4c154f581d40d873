"""Ulysses: attention over a long text, by two exchanges between all ranks.

Each rank has T/n of the T tokens. Most layers compute each token separately. Attention needs all
tokens, but computes each head separately (page attention). So before attention an exchange gives
each rank all tokens of some heads. After attention a second exchange gives each rank all heads of
its tokens. The picture has two ranks, four tokens and two heads. 3b is head b of token 3:

    rank 0    0a 0b  1a 1b                 0a 1a 2a 3a                 0a 0b  1a 1b
                            ── exchange ─►              ── exchange ─►
    rank 1    2a 2b  3a 3b                 0b 1b 2b 3b       back      2a 2b  3a 3b

              all heads of                 all tokens of               all heads of
              a part of the tokens         a part of the heads         a part of the tokens

Between the exchanges each rank computes attention for its heads, as on a single rank. The number of
heads must be a multiple of the number of ranks.

Both exchanges are an all-to-all: every rank has one block for every other rank. This takes n-1
steps. In step i a rank sends to the rank i places to its right, and receives from the rank i places
to its left. If a rank's array has K bytes, the rank sends (n-1)/n K bytes in an exchange. Four
arrays are exchanged: q, k, v and the result.

Backward does the same in the other direction: the gradient of an exchange is the exchange back.

Paper: Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
Sequence Transformer Models", 2023. This page is the plain version. The real one,
minidl/parallel/model/ulysses.py, adds: backward, batches, fewer heads of keys than of queries, any
mask, dropout, and parts of unequal length.
"""

import numpy as np


def all_to_all(t, outgoing, incoming):
    """Sends outgoing[j] to rank j, and receives incoming[i] from rank i.

    outgoing, incoming: lists of arrays, one array for each rank."""
    n, r = t.size, t.rank
    incoming[r][...] = outgoing[r]
    for step in range(1, n):
        right, left = (r + step) % n, (r - step) % n
        t.sendrecv(outgoing[right], right, incoming[left], left)


def exchange(t, x, split, join):
    """Cuts x along the axis `split` into a block for each rank, and sends the blocks. Returns the
    received blocks, joined along the axis `join`."""
    # A message must be one piece of memory. Some columns of an array are not one piece, so the
    # blocks are copied.
    outgoing = [block.copy() for block in np.split(x, t.size, axis=split)]
    incoming = [np.empty_like(block) for block in outgoing]
    all_to_all(t, outgoing, incoming)
    return np.concatenate(incoming, axis=join)


def attend(q, k, v):
    """Returns the causal attention of one head. q, k, v and the result: (tokens, width)."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(scores - scores.max(axis=1, keepdims=True)) * np.tri(len(q))
    return (p / p.sum(axis=1, keepdims=True)) @ v


def attention(t, q, k, v):
    """Returns the causal attention. q, k, v and the result: (tokens of this rank, heads, width)."""
    q, k, v = (exchange(t, x, split=1, join=0) for x in (q, k, v))  # (tokens, heads / n, width)
    heads = range(q.shape[1])
    o = np.stack([attend(q[:, h], k[:, h], v[:, h]) for h in heads], axis=1)
    return exchange(t, o, split=0, join=1)


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        token = np.arange(2 * t.rank, 2 * t.rank + 2)  # tokens 0 and 1 on rank 0, 2 and 3 on rank 1
        x = np.stack([10 * token, 10 * token + 1], axis=1)  # token 3: head 0 is 30, head 1 is 31
        y = exchange(t, x, split=1, join=0)
        return x.ravel(), y.ravel(), exchange(t, y, split=0, join=1).ravel()

    for rank, (x, y, back) in enumerate(simulate(2, example)):
        print("rank", rank, x, "->", y, "->", back)
