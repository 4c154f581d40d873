"""Binomial trees: ceil(log2 n) steps instead of n-1, for short messages.

The plain form: minidl/plain/tree.py. Here: with any root, for which the ranks are renamed
(rank - root) mod n; with other operations; a check that all ranks make the same call; and a
barrier. `parent` and `children` say the tree by the bits of a renamed rank: the parent is the rank
without its lowest set bit, a child has one more bit set, below that one. `parent(6)` is 4,
`children(8, 4)` are 5 and 6.

Test: tests/comm/test_tree.py   Tutorial: tutorials/09_topologies.py   Time: cost.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import xp_of
from minidl.comm.checks import check_peer
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray


@collective
def broadcast(t: Transport, x: SameArray, root: int = 0) -> SameArray:
    """Copy root's x into every rank's x; returns x. The root sends ceil(log2 n) messages."""
    check_peer(t, root, "root")
    n, me = t.size, (t.rank - root) % t.size
    if me:
        t.recv(x, (parent(me) + root) % n)
    for child in reversed(children(n, me)):  # the largest subtree first: it has the longest way
        t.send(x, (child + root) % n)
    return x


@collective
def reduce(t: Transport, x: SameArray, root: int = 0, op: Op = np.add) -> SameArray | None:
    """Reduce x onto root, in x's dtype; returns x on root, None elsewhere.

    x is the workspace: contiguous or not, it is overwritten with the result on root and with
    partial results on inner ranks. Every rank but root sends one message of x.nbytes."""
    check_peer(t, root, "root")
    n, me = t.size, (t.rank - root) % t.size
    below = children(n, me)
    theirs = xp_of([x]).empty_like(x) if below else None
    for child in below:
        op(x, t.recv(theirs, (child + root) % n), out=x)
    if me:
        t.send(x, (parent(me) + root) % n)
        return None
    return x


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Reduce onto rank 0, then broadcast, in place; returns x. 2(n-1) messages in all."""
    reduce(t, x, 0, op)
    return broadcast(t, x)


@collective
def barrier(t: Transport) -> None:
    """Return once every rank has called it: an all-reduce of nothing."""
    all_reduce(t, np.empty(0, np.uint8))


def parent(me):
    """The parent of the renamed rank `me`, not of 0, the root."""
    return me & (me - 1)


def children(n, me):
    """The children of the renamed rank `me` of n, the one with the smallest subtree first."""
    lowest = me & -me if me else n
    bits = [1 << k for k in range((n - 1).bit_length())]
    return [me + bit for bit in bits if bit < lowest and me + bit < n]
