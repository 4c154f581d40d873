"""How a vector is cut into n chunks, and the bytes each rank then sends.

    10 elements on 4 ranks:   |0 1 2|3 4 5|6 7|8 9|      L//n each, the first L%n one more

Test: tests/comm/test_chunks.py   Tutorial: tutorials/06_ring.py   Used by: all that cut an array

With fewer elements than ranks the last chunks are empty; they take part in every step all the same.
"""

# Of a pipeline's segments (chain.py, double_tree.py). Measured with 4 MPI ranks on 2 cores, 16 MiB:
# shorter ones lose to waking up ranks. Between hosts they may be shorter: `cost.best_segments`.
SEGMENT_BYTES = 1 << 20


def bounds(length, n):
    """The n+1 places where a vector of `length` elements is cut: chunk i is [b[i], b[i+1])."""
    size, longer = divmod(length, n)
    return [i * size + min(i, longer) for i in range(n + 1)]


def split(x, n):
    """The n chunks of the 1-d array x, as views."""
    b = bounds(len(x), n)
    return [x[b[i] : b[i + 1]] for i in range(n)]


def segment_count(n_bytes, segment_bytes=SEGMENT_BYTES):
    """Into how many segments of about segment_bytes a pipeline cuts an array; at least 1."""
    return max(1, -(-n_bytes // segment_bytes))


def span(x, n, first, end):
    """Chunks first, ..., end-1 of the n chunks of the 1-d array x, as one view."""
    return x[_begin(len(x), n, first) : _begin(len(x), n, end)]


def size(length, n, i):
    """Elements in chunk i (taken modulo n)."""
    return length // n + (i % n < length % n)


def check_flat(t, x):
    """x, a workspace that is cut into views; raises ValueError unless it is 1-d and contiguous."""
    if x.ndim != 1 or not x.flags.c_contiguous:
        raise ValueError(
            f"rank {t.rank}: working in place wants a 1-d contiguous array; got shape {x.shape}, "
            f"strides {x.strides}. Pass np.ascontiguousarray(x).reshape(-1)."
        )
    return x


def check_bounds(t, bounds, length=None):
    """`bounds` as a list of ints; raises ValueError unless they are n+1 places from 0 on (to
    `length`, if it is given) of which none goes back."""
    b = [int(place) for place in bounds]
    whole = len(b) == t.size + 1 and b[0] == 0 and (length is None or b[-1] == length)
    if not whole or b != sorted(b):
        to = "on" if length is None else f"to the length {length}"
        raise ValueError(
            f"rank {t.rank}: bounds of {t.size} blocks must be {t.size + 1} places from 0 {to}, "
            f"none before the one to its left; got {b if len(b) <= 20 else f'{len(b)} of them'}. "
            "chunks.bounds(length, n) cuts evenly."
        )
    return b


def ring_bytes_sent(length, itemsize, n, rank):
    """Bytes that `rank` sends in a ring all-reduce: 2K less its chunks r+1 and r+2.

    The reduce-scatter sends every chunk but r+1, the all-gather every chunk but r+2. It is
    2(n-1)K/n on every rank only if n divides the length (or n <= 2); the sum over ranks is always
    2(n-1)K.
    """
    if n == 1:
        return 0
    return itemsize * (2 * length - size(length, n, rank + 1) - size(length, n, rank + 2))


def ring_bytes_received(length, itemsize, n, rank):
    """Bytes that `rank` receives in a ring all-reduce, as its left neighbour sends them.

    2K less its chunks r and r+1.
    """
    return ring_bytes_sent(length, itemsize, n, (rank - 1) % n)


def _begin(length, n, i):
    """Where chunk i begins."""
    return i * (length // n) + min(i, length % n)
