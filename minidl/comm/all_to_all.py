"""All-to-all: every rank has a block for every rank. A transpose of blocks across ranks.

    rank 0   a0 a1 a2        a0 b0 c0       Experts and sequence parallelism use it, and the first
    rank 1   b0 b1 b2   ->   a1 b1 c1       half of compressed.py.
    rank 2   c0 c1 c2        a2 b2 c2

Pairwise exchange: in step s every rank sends to the rank s to its right and receives from the rank
s to its left. So in every step each port carries one message in and one out. If all ranks sent to
rank 0 first, then to rank 1, their messages would queue at one port.

Every block is sent once, from its owner to its reader: (n-1)/n of the array leaves each rank, and
no algorithm can send less.

Source: Thakur, Rabenseifner & Gropp 2005, section 4.4 (they pair rank r with r xor s where n is a
power of two: the same steps and bytes).
Test: tests/comm/test_all_to_all.py   MPI's names: Alltoall, Alltoallv   Time: cost.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import xp_of
from minidl.comm import chunks
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from typing import Any

    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Counts, SameArray


@collective
def all_to_all(t: Transport, x: SameArray) -> SameArray:
    """Send x[j] to rank j; returns a new array y in which y[i] came from rank i.

    x: (n, ...), the same shape and dtype on all ranks. Sends x.nbytes (n-1)/n in n-1 messages."""
    n, r = t.size, t.rank
    if x.ndim == 0 or len(x) != n:
        raise ValueError(
            f"rank {r}: all_to_all needs one block for each of the {n} ranks along the first axis; "
            f"got shape {x.shape}. x.reshape({n}, -1) makes equal blocks, all_to_all_v unequal.")
    x = chunks.contiguous(x)
    y = xp_of([x]).empty(x.shape, x.dtype)
    _exchange(t, _cut(x, [1] * n), _cut(y, [1] * n))
    return y


@collective(own_rows=("x",), own_args=("counts", "counts_in"))
def all_to_all_v(t: Transport, x: SameArray, counts: Counts,
                 counts_in: Counts | None = None) -> tuple[SameArray, Any]:
    """Send the next counts[j] rows of x to rank j; returns (y, counts_in): the rows that came here,
    in the order of the ranks that sent them, and how many each did.

    x: (rows, ...), dtype and shape of a row the same on all ranks. counts: n ints whose sum is
    len(x). counts_in: rows that come from each rank, if known; None: the ranks send each other
    their counts first, 8 (n-1) bytes in n-1 messages. Then sends x.nbytes less the rows that stay,
    in n-1 messages (empty ones too)."""
    n, r = t.size, t.rank
    counts = _counts(r, n, counts, "counts")
    if x.ndim == 0 or sum(counts) != len(x):
        raise ValueError(f"rank {r}: all_to_all_v must send every row of x to some rank; got shape "
                         f"{x.shape} and counts whose sum is {sum(counts)}")
    if counts_in is None:
        counts_in = all_to_all(t, np.array(counts, np.int64)).tolist()
    counts_in = _counts(r, n, counts_in, "counts_in")
    if counts_in[r] != counts[r]:
        raise ValueError(f"rank {r}: wanted counts_in[{r}] = counts[{r}], the rows that stay here; "
                         f"got {counts_in[r]} and {counts[r]}")
    y = xp_of([x]).empty((sum(counts_in), *x.shape[1:]), x.dtype)
    _exchange(t, _cut(chunks.contiguous(x), counts), _cut(y, counts_in))
    return y, counts_in


def _exchange(t, outgoing, incoming):
    """outgoing[j] to rank j, incoming[i] from rank i, pairwise."""
    n, r = t.size, t.rank
    incoming[r][...] = outgoing[r]
    for s in range(1, n):
        to, source = (r + s) % n, (r - s) % n
        t.sendrecv(outgoing[to], to, incoming[source], source)


def _counts(rank, n, counts, name):
    counts = [int(count) for count in counts]
    if len(counts) != n or min(counts) < 0:
        raise ValueError(f"rank {rank}: all_to_all_v needs {n} {name}, none negative, one for each "
                         f"rank; got {counts}")
    return counts


def _cut(x, counts):
    """x cut along its first axis into blocks of so many rows, as views."""
    ends = np.cumsum(counts)
    return [x[end - count : end] for end, count in zip(ends, counts, strict=True)]
