"""The ring with blocks of any length. Rank r owns block r. ZeRO uses this ring.

    bounds = [0, 3, 3, 7, 9]      block r is x[bounds[r] : bounds[r+1]]; block 1 is empty

    0 -> 1      In step s of the reduce-scatter, rank r sends its partial sum of block r-s-1 to the
    ^    v      right. It receives block r-s-2 from the left and adds it to its own block r-s-2.
    3 <- 2      The sum of block r starts at rank r+1 and is complete at rank r. The all-gather
                sends the complete blocks around the ring once more.

The algorithm is the same as in ring.py, but the blocks have other numbers. Block r of this file is
chunk r+1 of ring.py. The sum of block r begins at rank r+1 and goes around the ring. It is
(x_(r+1) + x_(r+2)) + ... + x_r, where x_i is block r of rank i. In `ring.all_reduce` the sum of
chunk r begins at rank r. So with three ranks or more, the last bits of a floating point sum may
differ from the last bits in ring.py. But `all_reduce` and `reduce_scatter` of this file give the
same bits. So training with either of these two functions gives the same bits.

The longest block of a step decides how long the step takes.

Test: tests/comm/test_ring_blocks.py   MPI's names: Reduce_scatter, Allgatherv   Time: cost.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import xp_of
from minidl.comm import chunks, ring
from minidl.comm.checks import check_bounds, check_flat
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Counts, Op, SameArray


@collective
def reduce_scatter(t: Transport, x: SameArray, bounds: Counts,
                   op: Op = np.add) -> SameArray:
    """Reduces x over the ranks. Returns this rank's complete block, x[bounds[r] : bounds[r+1]].

    x: as for `ring.reduce_scatter`. bounds: n+1 ints, the same on all n ranks. A rank sends every
    block except its own, in n-1 messages of one block each."""
    chunk = _chunks(t, x, bounds)
    ring.scatter_chunks(t, chunk, op)
    return chunk[(t.rank + 1) % t.size]


@collective
def all_gather(t: Transport, x: SameArray, bounds: Counts) -> SameArray:
    """Copies every rank's own block, x[bounds[r] : bounds[r+1]], to all ranks. Returns x.

    x, bounds: as for `reduce_scatter`. A rank sends every block except the right neighbour's, in
    n-1 messages of one block each."""
    ring.gather_chunks(t, _chunks(t, x, bounds))
    return x


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Combines all ranks' x element by element with op. Returns the result on every rank. Works in
    place if x is contiguous, as `ring.all_reduce` does.

    Each block of the result is equal, bit for bit, to the block that `reduce_scatter` returns for
    the bounds chunks.bounds(x.size, n). A rank sends 2 x.nbytes minus the bytes of two blocks, its
    own and its right neighbour's. It sends 2(n-1) messages."""
    flat = chunks.flat(x)
    bounds = chunks.bounds(len(flat), t.size)
    reduce_scatter(t, flat, bounds, op)
    all_gather(t, flat, bounds)
    return flat.reshape(x.shape)


@collective(own_rows=("own",))
def all_gather_v(t: Transport, own: SameArray) -> tuple[SameArray, list[int]]:
    """Joins every rank's 1-d array `own` in rank order. Returns (whole, bounds) on every rank.

    The array of rank r is whole[bounds[r] : bounds[r+1]]. The arrays of all ranks must have the
    same dtype, but may have different lengths. A rank first sends the lengths, 8 (n-1) bytes. Then
    it sends the arrays of all ranks except the right neighbour's. Together these are 2(n-1)
    messages."""
    if own.ndim != 1:
        raise ValueError(
            f"rank {t.rank}: all_gather_v wants a 1-d array; got shape {own.shape}. Pass "
            "own.reshape(-1).")
    bounds = bounds_of(t, len(own))
    whole = xp_of([own]).empty(bounds[-1], own.dtype)
    whole[bounds[t.rank] : bounds[t.rank + 1]] = own
    return all_gather(t, whole, bounds), bounds


@collective(own_args=("length",))
def bounds_of(t: Transport, length: int) -> list[int]:
    """length: the number of elements of this rank's block. Returns the bounds of all ranks' blocks,
    n+1 ints. Block r has the elements bounds[r] to bounds[r+1] of the joined array.

    A rank sends 8 (n-1) bytes in n-1 messages."""
    lengths = np.zeros(t.size, np.int64)
    lengths[t.rank] = length
    all_gather(t, lengths, range(t.size + 1))
    return [0, *np.cumsum(lengths).tolist()]


def _chunks(t, x, bounds):
    """Returns the list of the blocks of x, in the order of ring.py's chunks. Entry i of the list is
    block i-1, and entry 0 is the last block."""
    b = check_bounds(t, bounds, len(check_flat(t, x)))
    block = [x[b[i] : b[i + 1]] for i in range(t.size)]
    return [block[-1], *block[:-1]]


def bytes_sent(bounds: Counts, itemsize: int, rank: int, n_scatters: int = 1,
               n_gathers: int = 1) -> int:
    """Returns the number of bytes that `rank` sends in n_scatters calls of reduce_scatter and
    n_gathers calls of all_gather.

    A reduce-scatter sends all blocks except the rank's own. An all-gather sends all blocks except
    the right neighbour's. In one such collective all ranks together send exactly (n-1)K bytes,
    where K is the bytes of all blocks. If all blocks have the same length, each rank sends (n-1)/n
    K bytes."""
    n, length = len(bounds) - 1, bounds[-1]
    own, neighbours = (bounds[r + 1] - bounds[r] for r in (rank, (rank + 1) % n))
    return itemsize * (n_scatters * (length - own) + n_gathers * (length - neighbours))
