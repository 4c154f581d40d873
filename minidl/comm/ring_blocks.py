"""The ring, with blocks of any length: rank r owns block r. ZeRO uses it.

    bounds = [0, 3, 3, 7, 9]      rank r's block is x[bounds[r] : bounds[r+1]]; rank 1's is empty

    0 -> 1      In step s of the reduce-scatter rank r sends its partial sum of block r-s-1 to the
    ^    v      right and adds what comes from the left to block r-s-2. Block r starts at rank r+1
    3 <- 2      and ends, complete, at rank r. The all-gather carries it once more around.

This is ring.py with the blocks renamed: its chunk r+1 is block r here. So block r is summed around
the ring from rank r+1 on, (x_(r+1) + x_(r+2)) + ... + x_r, while `ring.all_reduce` sums its chunk r
from rank r on: with three ranks or more the last bits of floating point sums differ. `all_reduce`
here has the bits of `reduce_scatter`: training with either gives the same bits.

A step lasts as long as its longest block.

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
    """Reduce x over the ranks; returns this rank's complete block, x[bounds[r] : bounds[r+1]].

    x: as for `ring.reduce_scatter`. bounds: n+1 ints, the same on all ranks. Sends x.nbytes less
    the own block, in n-1 messages."""
    chunk = _chunks(t, x, bounds)
    ring.scatter_chunks(t, chunk, op)
    return chunk[(t.rank + 1) % t.size]


@collective
def all_gather(t: Transport, x: SameArray, bounds: Counts) -> SameArray:
    """Copy every rank's own block, x[bounds[r] : bounds[r+1]], to all ranks; returns x.

    x and bounds as above. Sends x.nbytes less the right neighbour's block, in n-1 messages."""
    ring.gather_chunks(t, _chunks(t, x, bounds))
    return x


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """The elementwise op of all ranks' x on every rank, as `ring.all_reduce`, in place where x is
    contiguous; each block has the bits that `reduce_scatter` with `chunks.bounds` gives it.

    Sends 2 x.nbytes less the blocks of this rank and of its right neighbour, in 2(n-1) messages."""
    flat = chunks.flat(x)
    bounds = chunks.bounds(len(flat), t.size)
    reduce_scatter(t, flat, bounds, op)
    all_gather(t, flat, bounds)
    return flat.reshape(x.shape)


@collective(own_rows=("own",))
def all_gather_v(t: Transport, own: SameArray) -> tuple[SameArray, list[int]]:
    """Every rank's 1-d array `own`, of any length, one after the other; returns (whole, bounds).

    Rank r's is whole[bounds[r] : bounds[r+1]]. dtype: the same on all ranks. Sends the lengths,
    8 (n-1) bytes, then the whole's bytes less the right neighbour's, in 2(n-1) messages."""
    if own.ndim != 1:
        raise ValueError(
            f"rank {t.rank}: all_gather_v joins 1-d arrays; got shape {own.shape}: reshape(-1)")
    bounds = bounds_of(t, len(own))
    whole = xp_of([own]).empty(bounds[-1], own.dtype)
    whole[bounds[t.rank] : bounds[t.rank + 1]] = own
    return all_gather(t, whole, bounds), bounds


@collective(own_args=("length",))
def bounds_of(t: Transport, length: int) -> list[int]:
    """The bounds of the blocks when each rank has a block of any `length`: n+1 ints.

    Sends 8 (n-1) bytes in n-1 messages."""
    lengths = np.zeros(t.size, np.int64)
    lengths[t.rank] = length
    all_gather(t, lengths, range(t.size + 1))
    return [0, *np.cumsum(lengths).tolist()]


def _chunks(t, x, bounds):
    """The blocks of x as the chunks of ring.py: chunk i is block i-1, and chunk 0 the last."""
    b = check_bounds(t, bounds, len(check_flat(t, x)))
    block = [x[b[i] : b[i + 1]] for i in range(t.size)]
    return [block[-1], *block[:-1]]


def bytes_sent(bounds: Counts, itemsize: int, rank: int, n_scatters: int = 1,
               n_gathers: int = 1) -> int:
    """Bytes that `rank` sends in these numbers of reduce-scatters and all-gathers.

    A reduce-scatter sends all but the own block, an all-gather all but the right neighbour's. Over
    all ranks, each is exactly (n-1)K; per rank (n-1)/n K, where the blocks are equal."""
    n, length = len(bounds) - 1, bounds[-1]
    own, neighbours = (bounds[r + 1] - bounds[r] for r in (rank, (rank + 1) % n))
    return itemsize * (n_scatters * (length - own) + n_gathers * (length - neighbours))
