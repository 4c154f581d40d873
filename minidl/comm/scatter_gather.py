"""Scatter sends each rank its block of the root's array. Gather collects the blocks on the root.

    step 0   0 ---[4 5 6 7]---> 4             Binomial tree: the root sends ceil(log2 n) messages.
    step 1   0 -[2 3]-> 2   4 -[6 7]-> 6      Each rank passes on the blocks of its subtree. Gather
    step 2   0 [1] 1  2 [3] 3  4 [5] 5  6 [7] 7      does the same steps backwards.

There is another way: the root sends every block itself, in n-1 messages. Then the root sends the
same number of bytes. In the model of cost.py this way is not slower, because the latencies overlap.
But each message also takes time of the root's processor. The model ignores this time. With the
tree, the root sends only ceil(log2 n) messages.

Arrays are cut along their first axis, into equal blocks or at `bounds`. If the root is not rank 0,
each rank gets a new number, (rank - root) mod n, as in tree.py. This number is called the renamed
rank. The subtree of the renamed rank v has the renamed ranks v, v+1, ...

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
    """Copies block r of root's x into rank r's `out`. Returns out.

    x: on root, the array with the rows of all blocks. The other ranks pass None. out: the array for
    this rank's block. It has the dtype of x, and rows of the same shape. bounds: n+1 ints, the same
    on all n ranks. Block r has the rows bounds[r] to bounds[r+1] of x. If bounds is None, all
    blocks have the same length. The root sends every block except its own."""
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
    for child in reversed(children(n, me)):  # sends to the largest subtree first, as in tree.py
        part = whole[at[child] - at[me] : at[_end(n, child)] - at[me]]
        t.send(part, (child + root) % n)
    out[...] = whole[: len(out)]
    return out


@collective(own_rows=("x",))
def gather(t: Transport, x: SameArray, root: int = 0,
           bounds: Counts | None = None) -> SameArray | None:
    """Joins all ranks' x in rank order along the first axis. Returns the result on root, None on
    the other ranks.

    x: this rank's block. The dtype and the shape of a row are the same on all ranks. bounds: n+1
    ints, the same on all n ranks. Block r becomes the rows bounds[r] to bounds[r+1] of the result.
    If bounds is None, all blocks have the same length. The root receives all blocks except its own.
    """
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
    first = bounds[-1] - bounds[root]  # rank 0's block comes after the blocks of ranks root to n-1
    return xp.roll(whole, -first, 0) if root else whole


def _end(n, me):
    """Returns the first renamed rank after `me` that is not in the subtree of the renamed rank
    `me`. A renamed rank is (rank - root) mod n."""
    return min(me + (me & -me), n) if me else n


def _places(bounds, root):
    """Returns a list p of n+1 ints. A rank's new number is v = (rank - root) mod n. In an array
    that begins with the root's block, the rank's block has the rows p[v] to p[v+1]."""
    lengths = np.roll(np.diff(bounds), -root)
    return [0, *np.cumsum(lengths).tolist()]


def _bounds(t, block, root, bounds):
    """Returns `bounds` as a list. If `bounds` is None, returns the bounds of blocks that all have
    the length of this rank's `block`. Raises ValueError if the bounds do not fit this block, or if
    root is not a rank."""
    check_peer(t, root, "root")
    if bounds is None:
        return [i * len(block) for i in range(t.size + 1)]
    bounds = check_bounds(t, bounds)
    if len(block) != bounds[t.rank + 1] - bounds[t.rank]:
        raise ValueError(f"rank {t.rank}: wanted a block of {bounds[t.rank + 1] - bounds[t.rank]} "
                         f"rows, the number in bounds for this rank; got {len(block)} rows")
    return bounds


def _check_root_array(t, x, out, bounds):
    if x is None or x.shape != (bounds[-1], *out.shape[1:]) or x.dtype != out.dtype:
        got = None if x is None else f"{x.dtype} of shape {tuple(x.shape)}"
        raise ValueError(f"rank {t.rank}: the root of a scatter wants the rows of all blocks in "
                         f"one array, {out.dtype} of shape {(bounds[-1], *out.shape[1:])}; got "
                         f"{got}")
