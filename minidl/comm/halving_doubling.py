"""All-reduce by halving and doubling. It takes 2 log2 n steps and sends as many bytes as the ring.

The plain form: minidl/plain/halving_doubling.py. In this file rank r owns chunk r of
`chunks.split`. So the halving part (reduce-scatter) and the doubling part (all-gather) can be
called alone. The all-reduces accept arrays of any shape, and any operation, not only a sum. A
second all-reduce, `doubling_all_reduce`, is for short messages. It exchanges the whole array in
each step. `bytes_sent` is a formula for the bytes.

If n is not a power of two, let p be the largest power of two below n. The ranks r >= p are called
extra ranks. Each extra rank r sends all of x to its partner, rank r-p. The partner adds this x to
its own x ("fold in"). At the end the partner sends the result back ("fold out"). In Rabenseifner's
own fold each of the two partners adds one half of x. That fold takes one step more, but its
additions take half the time.

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
    """Returns the largest power of two <= n. It is the number of ranks that take part in the
    halving and the doubling."""
    return 1 << (n.bit_length() - 1)


@collective
def reduce_scatter(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Reduces x over the ranks. Returns this rank's complete chunk of `chunks.split(x, core(n))`.

    x: as for `ring.reduce_scatter`. Rank r owns chunk r. On an extra rank (r >= core(n)) the result
    is an empty array."""
    p, r = core(t.size), t.rank
    scratch = t.scratch(len(check_flat(t, x)), x.dtype, x)
    if not _fold_in(t, x, scratch, p, op):
        return x[:0]
    low, far = 0, p // 2  # this rank still reduces 2 * far chunks; the first is chunk `low`
    while far:  # far: the distance to the partner, and the number of chunks that each rank sends
        lower = chunks.span(x, p, low, low + far)
        upper = chunks.span(x, p, low + far, low + 2 * far)
        mine, theirs = (upper, lower) if r & far else (lower, upper)
        op(t.sendrecv(theirs, r ^ far, scratch[: len(mine)], r ^ far), mine, out=mine)
        low += r & far
        far //= 2
    return chunks.span(x, p, r, r + 1)


@collective
def all_gather(t: Transport, x: SameArray) -> SameArray:
    """Copies every rank's own chunk to all ranks. Returns x. Rank r owns chunk r of
    `chunks.split(x, core(n))`. The extra ranks (r >= core(n)) own no chunk."""
    check_flat(t, x)
    p, r = core(t.size), t.rank
    far = 1
    while far < p and r < p:
        low = r // far * far  # this rank holds `far` chunks; the first is chunk `low`
        mine = chunks.span(x, p, low, low + far)
        theirs = chunks.span(x, p, low ^ far, (low ^ far) + far)
        t.sendrecv(mine, r ^ far, theirs, r ^ far)
        far *= 2
    _fold_out(t, x, p)
    return x


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Combines all ranks' x element by element with op. Returns the result on every rank. Works in
    place if x is contiguous, as `ring.all_reduce` does.

    All ranks get the same bits, because each chunk is reduced on one rank, and the other ranks copy
    the result. A rank sends `bytes_sent` bytes. Let p = core(n). A rank r < p sends 2 log2 p
    messages. If rank r+p exists, it is an extra rank, and rank r sends one message more. An extra
    rank sends one message."""
    flat = chunks.flat(x)
    reduce_scatter(t, flat, op)
    all_gather(t, flat)
    return flat.reshape(x.shape)


@collective
def doubling_all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """All-reduce for short messages, in log2 n steps. In each step two partners exchange the whole
    x, and each partner combines both arrays with op. Returns the result on every rank. Works in
    place if x is contiguous, as `ring.all_reduce` does.

    This function needs half as many steps as `all_reduce`. Let K be the bytes of x, and p =
    core(n). A rank r < p sends log2 p * K bytes. If rank r+p exists, it is an extra rank, and rank
    r sends K bytes more. An extra rank sends K bytes. All ranks get the same bits, because both
    partners combine the same operands in the same order."""
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
    """Each extra rank r >= p sends x to its partner, rank r-p. The partner combines this x with its
    own x by op. Returns False on the extra ranks, True on all other ranks."""
    if t.rank >= p:
        t.send(x, t.rank - p)
        return False
    if t.rank + p < t.size:
        op(x, t.recv(scratch[: len(x)], t.rank + p), out=x)
    return True


def _fold_out(t, x, p):
    """Each extra rank r >= p receives the result x from its partner, rank r-p."""
    if t.rank >= p:
        t.recv(x, t.rank - p)
    elif t.rank + p < t.size:
        t.send(x, t.rank + p)


def bytes_sent(length: int, itemsize: int, n: int, rank: int) -> int:
    """Returns the number of bytes that `rank` sends in `all_reduce`, for any length. All ranks
    together send 2(n-1)K bytes, where K is the bytes of x.

    Let p = core(n). In the halving part a rank sends all chunks except its own. In the doubling
    part it sends blocks of 1, 2, 4, ..., p/2 chunks. The fold sends the whole x twice: from an
    extra rank r >= p to rank r-p, and back."""
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
