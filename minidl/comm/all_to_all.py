"""All-to-all: every rank sends a block to every rank. It transposes the blocks across ranks.

    rank 0   a0 a1 a2        a0 b0 c0       Expert parallelism, sequence parallelism and the first
    rank 1   b0 b1 b2   ->   a1 b1 c1       half of compressed.py use all-to-all.
    rank 2   c0 c1 c2        a2 b2 c2

On n ranks there are n-1 steps. In step s, rank r sends to rank r+s and receives from rank r-s
(mod n). So in every step each rank sends one message and receives one message. There is a slower
order: all ranks send to rank 0 first, then to rank 1, and so on. In this order n-1 messages arrive
at one rank at the same time, and must wait for each other.

Every block is sent once, from the rank that has it to the rank that needs it. So each rank sends
(n-1)/n of its array. No algorithm can send less.

Source: Thakur, Rabenseifner & Gropp 2005, section 4.4. If n is a power of two, the paper pairs rank
r with rank r xor s in step s. This needs the same number of steps, and sends the same bytes.
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
    """Sends x[j] to rank j. Returns a new array y, in which y[i] came from rank i.

    x: an array of shape (n, ...), where n is the number of ranks. Its shape and dtype are the same
    on all ranks. y has this shape and dtype, too. A rank sends x.nbytes (n-1)/n bytes in n-1
    messages."""
    n, r = t.size, t.rank
    if x.ndim == 0 or len(x) != n:
        raise ValueError(
            f"rank {r}: all_to_all wants a first axis of length {n}, with one block for each of "
            f"the {n} ranks; got shape {x.shape}. x.reshape({n}, -1) makes equal blocks. For "
            "blocks of different lengths call all_to_all_v.")
    x = chunks.contiguous(x)
    y = xp_of([x]).empty(x.shape, x.dtype)
    _exchange(t, _cut(x, [1] * n), _cut(y, [1] * n))
    return y


@collective(own_rows=("x",), own_args=("counts", "counts_in"))
def all_to_all_v(t: Transport, x: SameArray, counts: Counts,
                 counts_in: Counts | None = None) -> tuple[SameArray, Any]:
    """Sends the first counts[0] rows of x to rank 0, the next counts[1] rows to rank 1, and so on.
    Returns (y, counts_in). y has the rows that this rank received, in the order of their senders.
    counts_in has the number of rows from each sender.

    x: (rows, ...). The dtype and the shape of a row are the same on all ranks. counts: one int for
    each of the n ranks. The sum of counts is len(x). counts_in: the number of rows from each rank,
    if known. If counts_in is None, each rank first sends its counts to the others, 8 (n-1)
    bytes in n-1 messages.

    This rank sends all its rows, except those for itself, in n-1 messages. A message may be empty.
    """
    n, r = t.size, t.rank
    counts = _counts(r, n, counts, "counts")
    if x.ndim == 0 or sum(counts) != len(x):
        raise ValueError(f"rank {r}: all_to_all_v wants counts whose sum is the number of rows of "
                         f"x; got counts whose sum is {sum(counts)}, and x of shape {x.shape}")
    if counts_in is None:
        counts_in = all_to_all(t, np.array(counts, np.int64)).tolist()
    counts_in = _counts(r, n, counts_in, "counts_in")
    if counts_in[r] != counts[r]:
        raise ValueError(f"rank {r}: wanted counts_in[{r}] = counts[{r}], the number of rows that "
                         f"stay on this rank; got counts_in[{r}]={counts_in[r]}, "
                         f"counts[{r}]={counts[r]}")
    y = xp_of([x]).empty((sum(counts_in), *x.shape[1:]), x.dtype)
    _exchange(t, _cut(chunks.contiguous(x), counts), _cut(y, counts_in))
    return y, counts_in


def _exchange(t, outgoing, incoming):
    """Sends outgoing[j] to rank j and receives incoming[i] from rank i, in n-1 steps."""
    n, r = t.size, t.rank
    incoming[r][...] = outgoing[r]
    for s in range(1, n):
        to, source = (r + s) % n, (r - s) % n
        t.sendrecv(outgoing[to], to, incoming[source], source)


def _counts(rank, n, counts, name):
    counts = [int(count) for count in counts]
    if len(counts) != n or min(counts) < 0:
        raise ValueError(f"rank {rank}: all_to_all_v needs {n} {name}, one for each rank, and "
                         f"none may be negative; got {counts}")
    return counts


def _cut(x, counts):
    """Returns a list of views of x: the first counts[0] rows, the next counts[1] rows, ..."""
    ends = np.cumsum(counts)
    return [x[end - count : end] for end, count in zip(ends, counts, strict=True)]
