"""Ring attention: each token looks at all earlier tokens, in a text that is too long for one rank.

Each rank has a part of the tokens, and a query q, a key k and a value v for each of them. Query i
needs all keys j <= i, and most of these are on other ranks. The keys and values of one rank are a
block. In each step every block goes to the next rank of the ring. The queries stay on their rank:

    step                0    1    2
    rank 0 has block    0    2    1
    rank 1 has block    1    0    2
    rank 2 has block    2    1    0

Rank 1 has the queries of part 1. It computes with block 1, then with block 0. It does not use block
2, because the keys of block 2 come later in the text than the queries of part 1.

The result for a query is a mean of values with the weights of a softmax:

    o = sum over j of  e^s_j v_j / e^lse         s_j = q k_j / sqrt(width)
    lse = log(sum over j of e^s_j)               "log of the sum of exponentials"

Each block gives one o and one lse. Two such pairs, over different keys, become one pair:

    lse = log(e^lse1 + e^lse2)        o = e^(lse1 - lse) o1 + e^(lse2 - lse) o2

This is the online softmax (page flash): no rank ever has all keys, or all scores of a query.

Backward sends keys and values around the ring again, together with their gradients. Every rank adds
its part to the gradients. After n steps the gradients of a block are back on the block's rank. Each
weight is computed from lse: p_j = e^(s_j - lse). Let go be the gradient of o. Then the gradient of
s_j is p_j (go v_j - go o). Here, as in q k_j, the product of two vectors is their dot product.

If a block has K bytes of keys and values, each rank sends (n-1) K bytes in forward, and 2 n K in
backward.

Paper: Liu, Zaharia & Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023. This page is the plain version. The real one,
minidl/parallel/model/ring_attention.py, adds: messages that bring the next block while this block
is computed, several heads, an order of the tokens that gives all ranks equal work, other masks,
dropout, parts of unequal length, and a backward that sends n-1 times and not n.
"""

import numpy as np


def scores(q, k, is_own):
    """Returns the score of each query and key. The score is -inf if the key comes later in the
    text than the query.

    is_own: True if queries and keys belong to the same tokens, False if all keys are earlier."""
    s = q @ k.T / np.sqrt(q.shape[1])
    if is_own:  # in its own block, query i sees only the keys j <= i
        s = np.where(np.tri(len(q), dtype=bool), s, -np.inf)
    return s


def merge(o1, lse1, o2, lse2):
    """Merges two results for the same queries, over different keys. Returns (o, lse)."""
    lse = np.logaddexp(lse1, lse2)
    return np.exp(lse1 - lse) * o1 + np.exp(lse2 - lse) * o2, lse


def pass_on(t, block):
    """Sends the block to the right neighbour. Returns the left neighbour's block."""
    coming = np.empty_like(block)
    t.sendrecv(block, (t.rank + 1) % t.size, coming, (t.rank - 1) % t.size)
    return coming


def forward(t, q, k, v):
    """Returns o and lse of causal attention. q, k, v and o: (tokens of this rank, width)."""
    o, lse = np.zeros_like(q), np.full((len(q), 1), -np.inf)  # no key yet, so lse is log 0
    block = np.stack([k, v])
    for step in range(t.size):
        owner = (t.rank - step) % t.size
        if owner <= t.rank:
            k, v = block
            s = scores(q, k, owner == t.rank)
            block_lse = np.log(np.exp(s).sum(axis=1, keepdims=True))
            o, lse = merge(o, lse, np.exp(s - block_lse) @ v, block_lse)
        if step < t.size - 1:
            block = pass_on(t, block)
    return o, lse


def backward(t, q, k, v, o, lse, go):
    """Returns the gradients of q, k and v. go: the gradient of o."""
    gq = np.zeros_like(q)
    block, gradient = np.stack([k, v]), np.zeros((2, *k.shape))
    for step in range(t.size):
        owner = (t.rank - step) % t.size
        if owner <= t.rank:
            k, v = block
            p = np.exp(scores(q, k, owner == t.rank) - lse)
            gp = go @ v.T
            gs = p * (gp - (go * o).sum(axis=1, keepdims=True))
            gs /= np.sqrt(q.shape[1])
            gq += gs @ k
            gradient += np.stack([gs.T @ q, p.T @ go])
        block, gradient = pass_on(t, block), pass_on(t, gradient)
    gk, gv = gradient
    return gq, gk, gv


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        v = np.array([[0.0, 2.0, 4.0, 6.0]]).T[2 * t.rank:2 * t.rank + 2]  # 2 tokens on each rank
        q = k = np.zeros((2, 1))  # all scores are equal, so o is the mean of the values so far
        o, lse = forward(t, q, k, v)
        gq, gk, gv = backward(t, q, k, v, o, lse, go=np.ones((2, 1)))
        return o.ravel().round(2), gv.ravel().round(2)

    for rank, (o, gv) in enumerate(simulate(2, example)):
        print("rank", rank, " o", o, " gv", gv)
