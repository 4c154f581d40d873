"""Binomial trees: ceil(log2 n) steps instead of n-1. Test: tests/comm/test_tree.py

    step 0   0 ------------> 4              Broadcast from 0 on 8 ranks: in every step each rank
    step 1   0 ----> 2       4 ----> 6      that has the data sends it to one that has not.
    step 2   0 > 1   2 > 3   4 > 5   6 > 7  Reduce is the same picture read backwards.

Good for short messages: few steps. For long ones the root's whole array passes through every step,
log2(n) * K on the critical path where the ring has 2K. With another root the ranks are renamed
(rank - root) mod n.
"""

import numpy as np

from .transport import collective


@collective
def broadcast(t, x, root=0):
    """Copy root's x into every rank's x; returns x. The root sends ceil(log2 n) messages."""
    n = t.size
    me = (t.rank - root) % n
    bit = 1
    while bit < n and not me & bit:
        bit *= 2
    # bit is now the lowest set bit of me (the root: a power of two >= n); the parent lacks it.
    if me:
        t.recv(x, (me - bit + root) % n)
    while bit > 1:
        bit //= 2
        if me + bit < n:
            t.send(x, (me + bit + root) % n)
    return x


@collective
def reduce(t, x, root=0, op=np.add):
    """Reduce x onto root, in x's dtype; returns x on root, None elsewhere.

    x is the workspace: contiguous or not, it is overwritten with the result on root and with
    partial results on inner ranks. Every rank but root sends one message of x.nbytes.
    """
    n = t.size
    me = (t.rank - root) % n
    theirs = None
    bit = 1
    while bit < n:
        if me & bit:
            t.send(x, (me - bit + root) % n)
            return None
        if me + bit < n:
            theirs = np.empty_like(x) if theirs is None else theirs
            op(x, t.recv(theirs, (me + bit + root) % n), out=x)
        bit *= 2
    return x


@collective
def all_reduce(t, x, op=np.add):
    """Reduce onto rank 0, then broadcast, in place; returns x. 2(n-1) messages in all."""
    reduce(t, x, 0, op)
    return broadcast(t, x)


@collective
def barrier(t):
    """Return once every rank has called it: an all-reduce of nothing."""
    all_reduce(t, np.empty(0, np.uint8))
