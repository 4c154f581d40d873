"""Scatter and gather: one rank has it all, every rank has its block.

    step 0   0 ---[4 5 6 7]---> 4             Binomial tree: the root sends ceil(log2 n) messages,
    step 1   0 -[2 3]-> 2   4 -[6 7]-> 6      each rank passes on the blocks of its subtree. Gather
    step 2   0 [1] 1  2 [3] 3  4 [5] 5  6 [7] 7      is the same picture read backwards.

If the root sent every block itself, n-1 messages, its link would carry the same bytes. By the model
of cost.py that is no slower, as the latencies overlap; but each message also takes time of the
root's processor, which the model leaves out: n-1 times, and in the tree log2 n times.

Arrays are cut along their first axis, into equal blocks or at `bounds`. With another root the ranks
are renamed (rank - root) mod n, as in tree.py; the subtree of rank v holds ranks from v on.

Source: Thakur, Rabenseifner & Gropp 2005, section 4.2.   Test: tests/comm/test_scatter_gather.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import xp_of
from minidl.comm.checks import check_bounds, check_peer
from minidl.comm.collective import collective
from minidl.comm.tree import children, parent

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Array, Counts, SameArray


@collective(own_args=("x",), own_rows=("out",))
def scatter(t: Transport, x: Array | None, out: SameArray, root: int = 0,
            bounds: Counts | None = None) -> SameArray:
    """Copy block r of root's x into rank r's `out`; returns out.

    x: root's array, its first axis as long as all blocks; the others pass None. out: this rank's
    block; x has its dtype and shape of a row. bounds: n+1 places in x, the same on all ranks; None:
    equal blocks. The root sends x.nbytes less its own block."""
    n, me = t.size, (t.rank - root) % t.size
    bounds = _bounds(t, out, root, bounds)
    if t.rank == root:
        _check_root_array(t, x, out, bounds)
        whole = xp_of([x]).roll(x, -bounds[root], 0) if root else x
    at = _places(bounds, root)
    if me:
        n_rows = at[_end(n, me)] - at[me]
        whole = xp_of([out]).empty((n_rows, *out.shape[1:]), out.dtype)
        t.recv(whole, (parent(me) + root) % n)
    for child in reversed(children(n, me)):  # the largest subtree first, as in tree.py
        part = whole[at[child] - at[me] : at[_end(n, child)] - at[me]]
        t.send(part, (child + root) % n)
    out[...] = whole[: len(out)]
    return out


@collective(own_rows=("x",))
def gather(t: Transport, x: SameArray, root: int = 0,
           bounds: Counts | None = None) -> SameArray | None:
    """All ranks' x one after the other along the first axis, on root; None elsewhere.

    x: this rank's block, dtype and shape of a row the same on all ranks. bounds: n+1 places in the
    result, the same on all ranks; None: equal blocks. The root receives all blocks but its own."""
    n, me = t.size, (t.rank - root) % t.size
    bounds = _bounds(t, x, root, bounds)
    at = _places(bounds, root)
    xp = xp_of([x])
    whole = xp.empty((at[_end(n, me)] - at[me], *x.shape[1:]), x.dtype)
    whole[: len(x)] = x
    for child in children(n, me):
        t.recv(whole[at[child] - at[me] : at[_end(n, child)] - at[me]], (child + root) % n)
    if me:
        t.send(whole, (parent(me) + root) % n)
        return None
    first = bounds[-1] - bounds[root]  # rank 0's block comes after those of root..n-1
    return xp.roll(whole, -first, 0) if root else whole


def _end(n, me):
    """The first renamed rank after `me` that is not in its subtree."""
    return min(me + (me & -me), n) if me else n


def _places(bounds, root):
    """Where the blocks of the renamed ranks begin in their own order: root's at 0; n+1 places."""
    lengths = np.roll(np.diff(bounds), -root)
    return [0, *np.cumsum(lengths).tolist()]


def _bounds(t, block, root, bounds):
    """`bounds`, or those of equal blocks; raises ValueError unless they fit this rank's block, and
    root is a rank."""
    check_peer(t, root, "root")
    if bounds is None:
        return [i * len(block) for i in range(t.size + 1)]
    bounds = check_bounds(t, bounds)
    if len(block) != bounds[t.rank + 1] - bounds[t.rank]:
        raise ValueError(f"rank {t.rank}: wanted a block of {bounds[t.rank + 1] - bounds[t.rank]} "
                         f"rows, as bounds say; got {len(block)}")
    return bounds


def _check_root_array(t, x, out, bounds):
    if x is None or x.shape != (bounds[-1], *out.shape[1:]) or x.dtype != out.dtype:
        got = None if x is None else f"{x.dtype} of shape {tuple(x.shape)}"
        raise ValueError(f"rank {t.rank}: the root of a scatter wants {out.dtype} of shape "
                         f"{(bounds[-1], *out.shape[1:])}, all blocks; got {got}")
