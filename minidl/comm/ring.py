"""Ring all-reduce (Patarasuk & Yuan 2009).

The plain form: minidl/plain/ring.py. This file accepts any elementwise operation and arrays of any
shape, and gives the same bits as the plain form. A step allocates no memory. Each call checks that
all ranks make the same call. The reduce-scatter and the all-gather can be called alone, and
ring_blocks.py uses their steps. `bytes_sent` is a formula for the bytes.

All ranks get the same bits, because the all-gather copies the sums. The bits depend on the number
of ranks, n, and on the places where the chunks begin. The sum of chunk c begins at rank c and goes
around the ring. It is (x_c + x_(c+1)) + ..., where x_r is chunk c of rank r's x.

Test: tests/comm/test_ring.py   Tutorial: tutorials/07_ring.py   Time: cost.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import chunks
from minidl.comm.checks import check_flat
from minidl.comm.collective import collective, in_step

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray


@collective
def reduce_scatter(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Reduces x over the ranks. Returns this rank's complete chunk: chunk rank+1, modulo n, of
    `chunks.split(x, n)`.

    x: a 1-d contiguous array of the same size on all ranks. x is overwritten. Afterwards the other
    chunks of x hold partial sums. A rank sends every chunk except the returned one, in n-1 messages
    of one chunk each."""
    chunk = chunks.Views(check_flat(t, x), t.size)
    scatter_chunks(t, chunk, op)
    return chunk[(t.rank + 1) % t.size]


@in_step
def scatter_chunks(t, chunk, op):
    """Runs the n-1 steps of the reduce-scatter on n ranks. chunk: a list of n 1-d arrays, which may
    have different lengths."""
    n, r = t.size, t.rank
    left, right = (r - 1) % n, (r + 1) % n
    scratch = t.scratch(chunks.longest(chunk), chunk[0].dtype, chunk[0])
    for s in range(n - 1):
        send, receive = (r - s) % n, (r - s - 1) % n
        mine, theirs = chunk[receive], scratch[: len(chunk[receive])]
        t.sendrecv(chunk[send], right, theirs, left)
        op(theirs, mine, out=mine)


@collective
def all_gather(t: Transport, x: SameArray) -> SameArray:
    """Copies every rank's own chunk to all ranks. A rank's own chunk is chunk rank+1, modulo n, of
    `chunks.split(x, n)`. Returns x.

    x: a 1-d contiguous array of the same size on all ranks. A rank sends every chunk except chunk
    rank+2, in n-1 messages of one chunk each."""
    gather_chunks(t, chunks.Views(check_flat(t, x), t.size))
    return x


@in_step
def gather_chunks(t, chunk):
    """Runs the n-1 steps of the all-gather on n ranks. chunk: a list of n 1-d arrays, which may
    have different lengths."""
    n, r = t.size, t.rank
    left, right = (r - 1) % n, (r + 1) % n
    for s in range(n - 1):
        send, receive = (r + 1 - s) % n, (r - s) % n
        t.sendrecv(chunk[send], right, chunk[receive], left)


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add) -> SameArray:
    """Combines all ranks' x element by element with op. Returns the result on every rank.

    If x is contiguous, it is overwritten with the result and returned. Otherwise x does not change,
    and a new array is returned. A rank sends `bytes_sent` bytes in 2(n-1) messages.

    op: np.add, np.maximum, np.minimum, np.multiply, np.logical_or, or another operation that is
    commutative and associative. The operation is done in the dtype of x. A float16 or bfloat16 sum
    rounds after every addition, so use `average.mean` for these dtypes."""
    flat = chunks.flat(x)
    reduce_scatter(t, flat, op)
    all_gather(t, flat)
    return flat.reshape(x.shape)


def bytes_sent(length: int, itemsize: int, n: int, rank: int) -> int:
    """Returns the number of bytes that `rank` sends in `all_reduce`, for any length. Let K be the
    bytes of x, and r the rank. The number is 2K minus the bytes of chunks r+1 and r+2.

    The reduce-scatter sends every chunk except r+1, and the all-gather sends every chunk except
    r+2. If n divides the length, or if n <= 2, every rank sends 2(n-1)/n K bytes. All ranks
    together always send 2(n-1)K bytes. A rank receives all bytes that its left neighbour sends."""
    if n == 1:
        return 0
    not_sent = chunks.size(length, n, rank + 1) + chunks.size(length, n, rank + 2)
    return itemsize * (2 * length - not_sent)
