"""Double binary tree all-reduce (Sanders, Speck & Träff 2009): few steps, and every rank is busy.

The plain form, with the picture of the two trees: minidl/plain/double_tree.py. Tree 0 sums the
first half of x, and tree 1 sums the second half. Here each half is cut into segments. The segments
follow each other up to the root and down again. H is the height of the root. In step s, the ranks
of each tree do this:
    a rank of height h    adds its children's segments s-h to its own segment; sends the sum up
    a rank of depth d     gets segment s-H-d of the result from its parent, and sends it down
At the root (height H, depth 0) the way up ends and the way down begins. Each message that a rank
receives in a step was sent in an earlier step, so there is no deadlock. The parent of a rank is
computed from the bits of its number, without a search. For example, `parent(n=6, r=5)` is 4.

NCCL 2.4 and later use the same trees (Jeaugey 2019, "Massively scale your deep learning training
with NCCL 2.4"). K is the bytes of x. All ranks together send 2(n-1)K bytes, as in the ring. A rank
that has two children in one tree sends 2K bytes. There are 2 ceil(log2 n) steps, and one more step
for each further segment.

Test: tests/comm/test_double_tree.py   Tutorial: tutorials/09_topologies.py   Time: cost.py
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from minidl.comm import chunks
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add,
               segment_bytes: int = chunks.SEGMENT_BYTES) -> SameArray:
    """Combines all ranks' x element by element with op. Returns the result on every rank. Works in
    place if x is contiguous, as `ring.all_reduce` does.

    All ranks get the same bits. Each half of x is reduced on one rank, the root of its tree. The
    other ranks copy the result. A rank sends `bytes_sent` bytes, in messages of segment_bytes bytes
    or a little less."""
    n, top = t.size, height_of(t.size)
    flat = chunks.flat(x)
    halves = chunks.split(flat, 2 if n > 1 else 1)
    n_segments = chunks.segment_count(halves[0].nbytes, segment_bytes)
    both = [(seat(n, t.rank, tree), chunks.split(h, n_segments)) for tree, h in enumerate(halves)]
    # The buffer fits every segment, because it is as long as the first segment, the longest one.
    theirs = t.scratch(len(both[0][1][0]), x.dtype, flat)
    going_up, going_down = [deque(), deque()], []
    # With a second buffer, a receive could start one step earlier. Between processes this was not
    # faster.
    for step in range(n_segments + 2 * top):
        for tree, (me, segment) in enumerate(both):
            k = step - me.height
            if 0 <= k < n_segments:
                for child in me.children:
                    op(segment[k], t.recv(theirs[: len(segment[k])], child, tree), out=segment[k])
                if me.parent is not None:
                    going_up[tree].append(t.isend(segment[k], me.parent, tree))
            k = step - top - me.depth
            if 0 <= k < n_segments:
                if me.parent is not None:
                    going_up[tree].popleft().wait()  # the next line overwrites this segment
                    t.recv(segment[k], me.parent, tree)
                going_down += [t.isend(segment[k], child, tree) for child in me.children]
    for request in going_down:
        request.wait()
    return flat.reshape(x.shape)


def segments(n_bytes):
    """An array of n_bytes has two halves, and each half is cut into segments. Returns the number of
    segments of one half."""
    return chunks.segment_count(-(-n_bytes // 2))


def parent(n, r):
    """Returns the parent of rank r in tree 0 of n ranks, or None for the root, rank 0."""
    if r == 0:
        return None
    bit = r & -r  # 2 ** (height of rank r)
    up = (r ^ bit) | (bit << 1)
    return up if up < n else r ^ bit


def children(n, r):
    """Returns a list of the children of rank r in tree 0 of n ranks. A rank has at most two
    children, and the root has one child."""
    bit = (r & -r) >> 1
    if r == 0:
        return [1 << ((n - 1).bit_length() - 1)] if n > 1 else []
    left, right = r - bit, r + bit
    while bit and right >= n:
        bit >>= 1
        right = r + bit
    return [child for child in (left, right) if child != r]


class Seat(NamedTuple):
    """A rank's place in a tree. The root has depth 0, and a leaf has height 0."""

    parent: int | None
    children: list
    depth: int
    height: int


def seat(n, rank, tree):
    """Returns the Seat of `rank` in a tree of n ranks. tree: 0 or 1. Tree 1 has the form of tree 0,
    but the ranks have other places. If n is even, rank r has the place of rank n-1-r in tree 0. If
    n is odd, rank r has the place of rank r-1, modulo n, in tree 0."""
    if tree == 0:
        rename = back = lambda r: r
    elif n % 2 == 0:
        rename = back = lambda r: n - 1 - r
    else:
        rename, back = lambda r: (r - 1) % n, lambda r: (r + 1) % n
    me = rename(rank)
    up = parent(n, me)
    depth, above = 0, up
    while above is not None:
        depth, above = depth + 1, parent(n, above)
    height = (me & -me).bit_length() - 1 if me else height_of(n)
    return Seat(None if up is None else back(up), [back(c) for c in children(n, me)], depth, height)


def height_of(n):
    """Returns the height of both trees, ceil(log2 n)."""
    return (n - 1).bit_length()


def bytes_sent(length: int, itemsize: int, n: int, rank: int) -> int:
    """Returns the number of bytes that `rank` sends in `all_reduce`, for any length. All ranks
    together send 2(n-1)K bytes, where K is the bytes of x.

    In each tree a rank sends one half of x to its parent and to each child. The root has no parent.
    """
    elems = 0
    for tree in (0, 1):
        me = seat(n, rank, tree)
        elems += chunks.size(length, 2, tree) * ((me.parent is not None) + len(me.children))
    return elems * itemsize
