"""How a vector of L elements is cut into n chunks.

    10 elements on 4 ranks:   |0 1 2|3 4 5|6 7|8 9|      L//n elements in each chunk, and
                                                         one more in the first L%n chunks

If there are fewer elements than ranks, the last chunks are empty. Their messages have 0 bytes.

Test: tests/comm/test_chunks.py   Tutorial: tutorials/07_ring.py
"""

from collections.abc import Sequence

# The size of a pipeline's segments (double_tree.py). It was measured with an array of 16 MiB and 4
# MPI ranks on 2 cores: with shorter segments, ranks are woken up too often. Between hosts, use
# `cost.best_segments`.
SEGMENT_BYTES = 1 << 20


def bounds(length, n):
    """Returns the n+1 indices at which a vector x of `length` elements is cut, as a list b of ints.
    Chunk i is x[b[i] : b[i+1]]."""
    size, longer = divmod(length, n)
    return [i * size + min(i, longer) for i in range(n + 1)]


def split(x, n):
    """Returns the n chunks of the 1-d array x, a list of views."""
    b = bounds(len(x), n)
    return [x[b[i] : b[i + 1]] for i in range(n)]


class Views(Sequence):
    """A sequence of the n chunks of the 1-d array x, like the list that `split` returns. But this
    class makes a view only when its chunk is used. For 4,096 simulated ranks with 4,096 views each,
    lists of views take 2 GB."""

    def __init__(self, x, n):
        self.whole, self._n = x, n
        self._size, self._longer = divmod(len(x), n)

    def __len__(self):
        return self._n

    def __getitem__(self, i):
        first = i * self._size + min(i, self._longer)
        return self.whole[first : first + self._size + (i < self._longer)]


def longest(chunk):
    """Returns the number of elements in the longest chunk. chunk: a list of arrays, or Views."""
    return len(chunk[0]) if isinstance(chunk, Views) else max(map(len, chunk))


def segment_count(n_bytes, segment_bytes=SEGMENT_BYTES):
    """An array of n_bytes is cut into segments, which are sent one after the other. Returns the
    number of segments, at least 1. A segment has about segment_bytes bytes, or fewer."""
    return max(1, -(-n_bytes // segment_bytes))


def span(x, n, first, end):
    """Returns the chunks first, ..., end-1 of the n chunks of the 1-d array x, as one view."""
    size, longer = divmod(len(x), n)
    return x[first * size + min(first, longer) : end * size + min(end, longer)]


def size(length, n, i):
    """Returns the number of elements in chunk i of a vector of `length` elements, cut into n
    chunks. i is taken modulo n, so i = n means chunk 0."""
    return length // n + (i % n < length % n)


def contiguous(x):
    """Returns x if it is contiguous, otherwise a contiguous copy."""
    return x if x.flags.c_contiguous else x.copy()


def flat(x):
    """Returns x as a 1-d contiguous array: a view if x is contiguous, otherwise a copy."""
    return x if x.ndim == 1 and x.flags.c_contiguous else contiguous(x).reshape(-1)
