"""All-reduce through memory that the ranks of a node share. It copies x once, and not twice.

    message         x  ->  MPI's buffer  ->  scratch, then the addition
    here            x  ->  a window that all ranks see, then the addition reads x there

Each rank has a piece of the window (window.py). x goes through the window in segments. "Copy in"
means to copy from x into the window. "Copy out" means to copy from the window into x. Each segment
takes three steps. With 3 ranks:

    rank 1's piece     | for rank 0 | . | for rank 2 |      1  copy x in, except rank 1's own chunk
    of the window      | for rank 0 | S | for rank 2 |      2  S: the sum of all ranks' chunk 1
    rank 1's x         |     S      | S |     S      |      3  copy out every rank's sum

The signal A(i) tells that a rank has copied segment i in. The signal R(i) tells that a rank has
written its sum of segment i. Each rank does this:

    copy in 0, signal A(0)
    for each segment i:   wait for A(i) of all     sum this rank's chunk of i    signal R(i)
                          copy in i+1              signal A(i+1)
                          wait for R(i) of all     copy out i

Segment i uses half i mod 2 of the window. So a rank can copy segment i+1 in while other ranks still
copy segment i out. Segment i+2 uses the same half as segment i. Because of two rules, a rank never
overwrites numbers that another rank still reads:
  - A rank copies segment i+2 into the window only after all ranks have signalled R(i). A rank
    signals R(i) after it has read its chunk of segment i in all pieces.
  - A rank writes its sum of segment i+2 only after all ranks have signalled A(i+2). A rank signals
    A(i+2) after it has copied segment i out.

A segment stays in the processor's cache. So x is read from memory little more than once, and
written to memory little more than once.

A short array is not cut. Every rank copies its whole array into the window, and every rank adds the
arrays of all ranks. This way needs one signal instead of two, but every rank makes n-1 additions of
the whole array. A rank copies the array of call i+2 into the window only after all ranks have
signalled A(i+1). A rank signals A(i+1) after it has added the arrays of call i. For float32 and
np.add, the same steps are also in kernels/host/window.cpp, as one call of C. A short all-reduce
takes a few microseconds, and most of this time is Python's. Without a compiler Python does it.

Every sum is computed in the order x_0 + x_1 + ... + x_(n-1), for any length, where x_r is the array
of rank r. So all ranks get the same bits. These bits equal the result of minidl/plain/naive.py. The
bits do not depend on how gradients are cut into buckets.

If a rank reads bytes from a peer's piece, a ledger counts these bytes as received from that peer.
If the peer reads bytes from this rank's piece, the ledger counts these bytes as sent. `bytes_read`
is the formula. There are no messages. Copies to and from a rank's own piece do not count.

Source: Graham & Shipman 2008, MPI's collectives through shared memory. Here the signals are flags.
Test: tests/comm/test_shared_memory.py   Time: cost.py   Window: MPI.Win.Allocate_shared
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import chunks
from minidl.comm.collective import collective
from minidl.comm.transport import staging
from minidl.comm.transport.window import ARRIVED, REDUCED

if TYPE_CHECKING:
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Op, SameArray

# The size of a chunk in bytes. A rank reads one chunk from the piece of each of the n ranks. If
# there are few ranks, these n chunks and x fit in a core's second-level cache (1 to 2 MiB on
# today's servers). With smaller chunks the signals cost more than the cache saves. A rank's piece
# has two halves of 4 MiB.
CHUNK_BYTES = 512 << 10
HALF_BYTES = 4 << 20

# An array of up to WHOLE_BYTES / n bytes is not cut. For such an array, one signal and n-1
# additions of the whole array take less time than two signals. The limit was measured with 2 ranks.
WHOLE_BYTES = 256 << 10


@collective
def all_reduce(t: Transport, x: SameArray, op: Op = np.add, *,
               chunk_bytes: int = CHUNK_BYTES) -> SameArray:
    """Combines all ranks' x element by element with op. Returns the result on every rank. Works in
    place if x is contiguous, as `ring.all_reduce` does.

    Raises NoSharedMemory on all ranks if they do not share memory. The first call makes the shared
    window, 8 MiB per rank, and later calls use it again. Only one task of a rank may call this
    function at a time.

    chunk_bytes: the largest size of a chunk, in bytes."""
    if t.size > 1:
        window = t.shared(2 * HALF_BYTES)
        if x.nbytes * t.size <= WHOLE_BYTES and window.all_reduce_in_c(x, op):
            window.moved(window.others, x.nbytes, x.nbytes)
            return x
    flat = chunks.flat(x)
    if t.size > 1:
        if staging.on_device(flat):
            with staging.on_host(t, flat) as host:  # the window is in the host's memory
                _through(window, host, op, t.size, chunk_bytes)
        else:
            _through(window, flat, op, t.size, chunk_bytes)
    return x if flat is x else flat.reshape(x.shape)


def _through(window, x, op, n, chunk_bytes):
    if x.nbytes * n <= WHOLE_BYTES:
        _whole(window, x, op)
    else:
        _in_segments(window, x, op, segment_bytes(n, chunk_bytes))


def segment_bytes(n, chunk_bytes=CHUNK_BYTES):
    """Returns the number of bytes of a segment. x goes through the window one segment at a time.

    n: the number of ranks. chunk_bytes: the largest size of one rank's chunk of a segment."""
    return min(n * chunk_bytes, HALF_BYTES)


def segments(n, n_bytes):
    """Returns the number of segments into which an all-reduce of n ranks cuts an array of n_bytes.
    0 means that the array is short and is not cut."""
    return 0 if n_bytes * n <= WHOLE_BYTES else -(-n_bytes // segment_bytes(n))


def bytes_read(length, itemsize, n, reader, owner, chunk_bytes=CHUNK_BYTES):
    """Returns the number of bytes that rank `reader` reads in the piece of rank `owner`, in one
    all-reduce. A piece is the part of the shared window that one rank writes.

    In each segment the reader reads two chunks in the owner's piece. It adds the chunk with the
    reader's number to the reader's sum. It copies the chunk with the owner's number, which holds
    the owner's sum. If x is short, the reader reads the owner's whole x instead. From all owners
    together a rank reads K bytes (the bytes of x) and the bytes of n-2 chunks. If x is short, it
    reads (n-1) K bytes."""
    if length * itemsize * n <= WHOLE_BYTES:
        return length * itemsize
    longest = segment_bytes(n, chunk_bytes) // itemsize
    elems = 0
    for lo in range(0, length, longest):
        here = min(longest, length - lo)
        elems += chunks.size(here, n, reader) + chunks.size(here, n, owner)
    return elems * itemsize


def _whole(window, x, op):
    n_bytes, half = x.nbytes, window.take_turns(1) % 2
    pieces = window.halves(x.dtype, len(x))[half]
    pieces[window.rank][...] = x
    window.signal(ARRIVED, n_bytes)
    window.wait(ARRIVED)
    op(pieces[0], pieces[1], out=x)
    for piece in pieces[2:]:
        op(x, piece, out=x)
    window.moved(window.others, n_bytes, n_bytes)


def _in_segments(window, x, op, n_bytes):
    r, n = window.rank, len(window.pieces)
    longest = n_bytes // x.itemsize
    halves = window.halves(x.dtype, min(len(x), longest))
    segments = [chunks.split(x[lo : lo + longest], n) for lo in range(0, len(x), longest)]
    # Chunk c begins at the same place in every segment, also in a shorter last segment. Otherwise a
    # rank could copy the last segment over a sum that another rank still copies out.
    places = chunks.bounds(min(len(x), longest), n)
    turn = window.take_turns(len(segments))

    def slots(i, c):
        """Returns a list of views, one for each rank's piece of the window. A view is the memory
        for chunk c of segment i."""
        end = places[c] + len(segments[i][c])
        return [piece[places[c] : end] for piece in halves[(turn + i) % 2]]

    def copy_in(i):
        for peer in window.others:
            np.copyto(slots(i, peer)[r], segments[i][peer])
        window.signal(ARRIVED, x.nbytes)

    copy_in(0)
    for i, segment in enumerate(segments):
        window.wait(ARRIVED)
        terms = slots(i, r)
        total, terms[r] = terms[r], segment[r]
        op(terms[0], terms[1], out=total)
        for term in terms[2:]:
            op(total, term, out=total)
        for peer in window.others:
            window.moved([peer], total.nbytes, segment[peer].nbytes)
        window.signal(REDUCED, x.nbytes)

        if i + 1 < len(segments):
            copy_in(i + 1)

        window.wait(REDUCED)
        for c in range(n):
            np.copyto(segment[c], slots(i, c)[c])
        for peer in window.others:
            window.moved([peer], segment[peer].nbytes, total.nbytes)
