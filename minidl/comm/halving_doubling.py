"""Recursive halving and doubling: the bytes of the ring in 2 log2 n steps (Rabenseifner 2004).

The plain form: minidl/plain/halving_doubling.py. Here: rank r owns chunk r of `chunks.split`, so
that each half is a collective by itself; other operations and arrays of any shape; a form for short
messages that never halves (`doubling_all_reduce`); and the formula of the bytes.

If n is no power of two, the extra ranks send all of x to the first ones, which add it ("fold in"),
and get the result at the end. (Rabenseifner's own fold halves that addition, by one more message.)

Source: Rabenseifner 2004, "Optimization of collective reduction operations"; Thakur et al. 2005.
Test: tests/comm/test_halving_doubling.py   Tutorial: tutorials/09_topologies.py   Time: cost.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import chunks
from minidl.comm.checks import check_flat
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray


def core(n):
    """The largest power of two that is at most n: the number of ranks that halve and double."""
    return 1 << (n.bit_length() - 1)


@collective
def reduce_scatter(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Reduce x over the ranks; returns this rank's complete chunk of `chunks.split(x, core(n))`.

    x: as for `ring.reduce_scatter`. Rank r owns chunk r; an extra rank nothing (an empty array)."""
    p, r = core(t.size), t.rank
    scratch = t.scratch(len(check_flat(t, x)), x.dtype, x)
    if not _fold_in(t, x, scratch, p, op):
        return x[:0]
    low, far = 0, p // 2  # this rank still reduces 2 far chunks, from low on
    while far:
        lower = chunks.span(x, p, low, low + far)
        upper = chunks.span(x, p, low + far, low + 2 * far)
        mine, theirs = (upper, lower) if r & far else (lower, upper)
        op(t.sendrecv(theirs, r ^ far, scratch[: len(mine)], r ^ far), mine, out=mine)
        low += r & far
        far //= 2
    return chunks.span(x, p, r, r + 1)


@collective
def all_gather(t: Transport, x: SameArray) -> SameArray:
    """Copy every rank's own chunk of `chunks.split(x, core(n))` to all ranks; returns x."""
    check_flat(t, x)
    p, r = core(t.size), t.rank
    far = 1
    while far < p and r < p:
        low = r // far * far  # this rank holds far chunks, from low on; its partner as many
        mine = chunks.span(x, p, low, low + far)
        theirs = chunks.span(x, p, low ^ far, (low ^ far) + far)
        t.sendrecv(mine, r ^ far, theirs, r ^ far)
        far *= 2
    _fold_out(t, x, p)
    return x


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """The elementwise op of all ranks' x, on every rank, in place like `ring.all_reduce`.

    The same bits on all ranks: each chunk is reduced on one and copied. Sends `bytes_sent` bytes in
    2 log2 core(n) messages, and one more on the ranks that fold."""
    flat = chunks.flat(x)
    reduce_scatter(t, flat, op)
    all_gather(t, flat)
    return flat.reshape(x.shape)


@collective
def doubling_all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """All-reduce for short messages: log2 n steps in which partners swap all of x and both add.

    Half the steps of `all_reduce`, log2 core(n) * K bytes. The same bits on all ranks, because both
    partners add the same two operands in the same order."""
    p, r = core(t.size), t.rank
    flat = chunks.flat(x)
    theirs = t.scratch(len(flat), x.dtype, x)
    if _fold_in(t, flat, theirs, p, op):
        far = 1
        while far < p:
            t.sendrecv(flat, r ^ far, theirs, r ^ far)
            first, second = (theirs, flat) if r & far else (flat, theirs)
            op(first, second, out=flat)
            far *= 2
    _fold_out(t, flat, p)
    return flat.reshape(x.shape)


def _fold_in(t, x, scratch, p, op):
    """The extra ranks send x to their partners; returns False on the extra ranks."""
    if t.rank >= p:
        t.send(x, t.rank - p)
        return False
    if t.rank + p < t.size:
        op(x, t.recv(scratch[: len(x)], t.rank + p), out=x)
    return True


def _fold_out(t, x, p):
    """The extra ranks get the result."""
    if t.rank >= p:
        t.recv(x, t.rank - p)
    elif t.rank + p < t.size:
        t.send(x, t.rank + p)


def bytes_sent(length: int, itemsize: int, n: int, rank: int) -> int:
    """Bytes that `rank` sends in `all_reduce`, for any length; over all ranks 2(n-1)K in sum.

    Halving sends all but the rank's own chunk. Doubling sends the rank's block of 1, 2, ..., p/2
    chunks. Folding sends all of x: in from an extra rank, out from its partner."""
    p = core(n)
    if rank >= p:
        return length * itemsize
    cuts = chunks.bounds(length, p)
    elems = length - (cuts[rank + 1] - cuts[rank])
    far = 1
    while far < p:
        low = rank // far * far
        elems += cuts[low + far] - cuts[low]
        far *= 2
    if rank + p < n:
        elems += length
    return elems * itemsize
