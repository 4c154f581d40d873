"""All-reduce through memory that the ranks of a node share: one copy, where a message makes two.

    message         x  ->  the MPI's buffer  ->  scratch, then the addition
    here            x  ->  a window that all ranks see, then the addition reads it where it lies

Each rank has a piece of the window (window.py). x goes through it in segments, here of 3 ranks:

    rank 1's piece     | for rank 0 | . | for rank 2 |      1  copy x in, but for the own chunk
    of the window      | for rank 0 | S | for rank 2 |      2  S: the sum of all ranks' chunk 1
    rank 1's x         |     S      | S |     S      |      3  copy out every rank's sum

    copy in 0, signal A0
    for each segment i:   wait A(i) of all      reduce the own chunk of i      signal R(i)
                          copy in i+1           signal A(i+1)
                          wait R(i) of all      copy out i

Segment i uses half i mod 2 of the window, so i+1 can be copied in while others still copy i out.
Half h is used again for i+2. Why no rank overwrites what another still reads:
  - i+2 is copied in after R(i) of all ranks: all have then read the chunks of i meant for them;
  - a sum of i+2 is written after A(i+2) of all, which each signals after it has copied i out.

A segment stays in the cache, so that memory has little more to do than to read and write x once.
A short array is copied in whole and every rank adds all of them itself: one signal instead of two,
for n-1 times the additions. Then i+2 is copied in after A(i+1) of all, which each signals after it
has added i.

The order of every sum is x_0 + x_1 + ... + x_(n-1), whatever the length: the same bits on all
ranks, and the same as in minidl/plain/naive.py, however the array was cut into buckets.

A ledger counts what a rank reads of each peer's piece as received, and what the peer reads of its
own as sent: `bytes_read`. There are no messages; copies to and from the own piece do not count.

Source: as in MPI's own collectives for shared memory (Graham & Shipman 2008), with flags.
Test: tests/comm/test_shared_memory.py   Time: cost.py   Window: MPI.Win.Allocate_shared
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import chunks
from minidl.comm.collective import collective
from minidl.comm.transport import staging

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray

# A chunk and its n-1 peers' fit a core's second-level cache with room for x (1 to 2 MiB on today's
# servers); less and the signals cost more than the cache gains. The whole piece is at most 8 MiB.
CHUNK_BYTES = 512 << 10
HALF_BYTES = 4 << 20

# Up to here one signal with n-1 additions of all of x is faster than two signals: 2 ranks, 256 KiB.
WHOLE_BYTES = 256 << 10

ARRIVED, REDUCED = 0, 1  # the kinds of signals: A and R above


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add, *,
               chunk_bytes: int = CHUNK_BYTES) -> SameArray:
    """The elementwise op of all ranks' x, on every rank, in place like `ring.all_reduce`.

    The ranks must share memory: else NoSharedMemory on all of them. The first call makes the
    window, 8 MiB per rank, which lives as long as the transport. One user at a time."""
    flat = chunks.flat(x)
    if t.size > 1:
        window = t.shared(2 * HALF_BYTES)
        with staging.on_host(t, flat) as host:  # the window is in the host's memory
            if host.nbytes * t.size <= WHOLE_BYTES:
                _whole(window, host, op)
            else:
                _in_segments(window, host, op, segment_bytes(t.size, chunk_bytes))
    return flat.reshape(x.shape)


def segment_bytes(n, chunk_bytes=CHUNK_BYTES):
    """Bytes of x that go through the window at a time."""
    return min(n * chunk_bytes, HALF_BYTES)


def segments(n, n_bytes):
    """How many segments an array of n_bytes is cut into; 0: whole."""
    return 0 if n_bytes * n <= WHOLE_BYTES else -(-n_bytes // segment_bytes(n))


def bytes_read(length, itemsize, n, reader, owner, chunk_bytes=CHUNK_BYTES):
    """Bytes that rank `reader` reads of rank `owner`'s piece of the window in an all-reduce.

    Of each segment its own chunk, to add it, and the owner's, which is summed; the whole of x where
    x is short. In sum over the owners (n-2) chunks + K, or (n-1) K."""
    if length * itemsize * n <= WHOLE_BYTES:
        return length * itemsize
    longest = segment_bytes(n, chunk_bytes) // itemsize
    elems = 0
    for lo in range(0, length, longest):
        here = min(longest, length - lo)
        elems += chunks.size(here, n, reader) + chunks.size(here, n, owner)
    return elems * itemsize


def _whole(window, x, op):
    pieces = [p[: len(x)] for p in window.halves(x.dtype)[window.take_turns(1) % 2]]
    np.copyto(pieces[window.rank], x)
    window.signal(ARRIVED, x.nbytes)
    window.wait(ARRIVED, x.nbytes)
    op(pieces[0], pieces[1], out=x)
    for piece in pieces[2:]:
        op(x, piece, out=x)
    for peer in window.others:
        window.moved(peer, x.nbytes, x.nbytes)


def _in_segments(window, x, op, n_bytes):
    r, n = window.rank, len(window.pieces)
    halves = window.halves(x.dtype)
    longest = n_bytes // x.itemsize
    segments = [chunks.split(x[lo : lo + longest], n) for lo in range(0, len(x), longest)]
    # Chunk c begins at the same place in every segment, in a shorter last one too: else that could
    # be copied in over a sum that is still copied out.
    places = chunks.bounds(min(len(x), longest), n)
    turn = window.take_turns(len(segments))

    def slots(i, c):
        """Chunk c of segment i in every rank's piece."""
        end = places[c] + len(segments[i][c])
        return [piece[places[c] : end] for piece in halves[(turn + i) % 2]]

    def copy_in(i):
        for peer in window.others:
            np.copyto(slots(i, peer)[r], segments[i][peer])
        window.signal(ARRIVED, x.nbytes)

    copy_in(0)
    for i, segment in enumerate(segments):
        window.wait(ARRIVED, x.nbytes)
        terms = slots(i, r)
        total, terms[r] = terms[r], segment[r]
        op(terms[0], terms[1], out=total)
        for term in terms[2:]:
            op(total, term, out=total)
        for peer in window.others:
            window.moved(peer, total.nbytes, segment[peer].nbytes)
        window.signal(REDUCED, x.nbytes)

        if i + 1 < len(segments):
            copy_in(i + 1)

        window.wait(REDUCED, x.nbytes)
        for c in range(n):
            np.copyto(segment[c], slots(i, c)[c])
        for peer in window.others:
            window.moved(peer, segment[peer].nbytes, total.nbytes)
