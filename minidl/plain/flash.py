"""Flash attention: attention block by block, so that the T x T scores never exist all at once.

Attention is O = softmax(S) V with S = Q K^T / sqrt(E). S is much larger than Q, K, V and O. Here
the keys come in blocks, and S exists for one block at a time. A softmax needs two numbers for each
row: the largest score m, and the sum l of e^(score - m), over ALL keys. Every block updates both
numbers. It also updates o, the sum of the values times e^(score - m). If a block has a larger
maximum m', l and o are multiplied by e^(m - m'). Then they are right for the new maximum:

    a new block of keys:    m' = max(m, largest new score)
    the sums so far:        l, o  <-  e^(m - m') l,  e^(m - m') o
    the block is added:     l  <-  l + sum of e^(new scores - m')
                            o  <-  o + e^(new scores - m') V_block
    after the last block:   O = o / l

Forward keeps lse = m + log(l) for backward: the log of the sum of all e^score, one number for each
row. Backward computes the scores of each block again, and gets the weights with lse:
P = e^(S - lse). Below, GO is the gradient of the loss with respect to O. In the same way, GV, GP,
GS, GQ and GK are the gradients with respect to V, P, S, Q and K:

    GV = P^T GO        GP = GO V^T        GS = P * (GP - D)        the derivative of softmax
    GQ = GS K / sqrt(E)                   GK = GS^T Q / sqrt(E)

D has one number for each row i:

    D_i = sum over j of P_ij GP_ij = sum over c of GO_ic O_ic

Memory: Q, K, V, O and the T numbers of lse, instead of T^2 scores. One block needs T * block
numbers.

Papers: Dao et al., "FlashAttention", 2022; Milakov & Gimelshein, "Online normalizer calculation for
softmax", 2018.
This page is the plain version. The real one, minidl/ops/attention.py and
minidl/ops/attention_kernel.py, adds: blocks of queries, masks (a causal mask skips half of the
work), dropout, and kernels that keep a block in registers.
"""

import numpy as np


def forward(q, k, v, block):
    """Returns (O, lse) of one head, for q, k and v of shape (T, E). Each query sees all keys.

    block: the number of keys in a block."""
    scale = q.shape[1]**-0.5
    m = np.full((len(q), 1), -np.inf)
    total = np.zeros((len(q), 1))  # called l at the top of this file
    o = np.zeros_like(q)
    for start in range(0, len(k), block):
        keys = slice(start, start + block)
        s = q @ k[keys].T * scale  # (T, block)
        new_m = np.maximum(m, s.max(1, keepdims=True))
        p = np.exp(s - new_m)
        shrink = np.exp(m - new_m)  # 0 for the first block, where m is -infinity
        total = shrink * total + p.sum(1, keepdims=True)
        o = shrink * o + p @ v[keys]
        m = new_m
    return o / total, m + np.log(total)


def backward(go, q, k, v, o, lse, block):
    """Returns (GQ, GK, GV). go is the gradient of O; o and lse are the results of forward."""
    scale = q.shape[1]**-0.5
    d = (go * o).sum(1, keepdims=True)
    gq, gk, gv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for start in range(0, len(k), block):
        keys = slice(start, start + block)
        p = np.exp(q @ k[keys].T * scale - lse)
        gp = go @ v[keys].T
        gs = p * (gp - d)
        gq += gs @ k[keys] * scale
        gk[keys] = gs.T @ q * scale
        gv[keys] = p.T @ go
    return gq, gk, gv


if __name__ == "__main__":
    q = np.ones((1, 1))  # the query is the number 1, so each score is equal to its key
    k = np.log([[1.0], [2.0], [5.0]])  # so e^score is 1, 2 and 5
    v = np.array([[80.0], [40.0], [8.0]])
    for block in 1, 2, 3:
        o, lse = forward(q, k, v, block)
        print("blocks of", block, "keys: O", o.round(6), " e^lse", np.exp(lse).round(6))
