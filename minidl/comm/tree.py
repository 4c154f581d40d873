"""Binomial trees: ceil(log2 n) steps instead of n-1, for short messages.

The plain form: minidl/plain/tree.py. This file adds four things: any root, other operations, a
check that all ranks make the same call, and a barrier. If the root is not rank 0, each rank gets a
new number, (rank - root) mod n. This number is called the renamed rank. `parent` and `children` use
the bits of a renamed rank. The parent is the rank without its lowest set bit. A child has one more
bit set, below the lowest set bit of the rank. `parent(6)` is 4, and `children(8, 4)` is [5, 6].

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
    """Copies root's x into every rank's x. Returns x. The root sends ceil(log2 n) messages.

    x has the same number of bytes on all ranks."""
    check_peer(t, root, "root")
    n, me = t.size, (t.rank - root) % t.size
    if me:
        t.recv(x, (parent(me) + root) % n)
    for child in reversed(children(n, me)):  # the largest subtree first: it takes the most steps
        t.send(x, (child + root) % n)
    return x


@collective
def reduce(t: Transport, x: SameArray, root: int = 0, op: Op = np.add) -> SameArray | None:
    """Combines all ranks' x with op on root, in x's dtype. Returns x on root, None on the other
    ranks.

    On root, x is overwritten with the result. On each other rank that has children, x is
    overwritten with a partial result. x need not be contiguous. Every rank except root sends one
    message of x.nbytes bytes.
    """
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
    """Reduces x onto rank 0, then broadcasts the result. Returns x on every rank. x is overwritten
    with the result. All n ranks together send 2(n-1) messages."""
    reduce(t, x, 0, op)
    return broadcast(t, x)


@collective
def barrier(t: Transport) -> None:
    """Waits until every rank has called barrier(). A barrier is an all-reduce of an empty array."""
    all_reduce(t, np.empty(0, np.uint8))


def parent(me):
    """Returns the parent of the renamed rank `me` (see the top of this file). The root is renamed
    rank 0, and has no parent."""
    return me & (me - 1)


def children(n, me):
    """Returns a list of the children of the renamed rank `me`, for n ranks. The child with the
    smallest subtree comes first."""
    lowest = me & -me if me else n
    bits = [1 << k for k in range((n - 1).bit_length())]
    return [me + bit for bit in bits if bit < lowest and me + bit < n]
