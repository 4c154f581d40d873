"""Finds the large elements of a vector, as (index, value) pairs in the order of their indices.

    x         0.1 -3  0.2  2 | 0 0.3 | 5 0 -4        threshold 2, three chunks
    counts          2        |   0   |   2           how many |x| >= 2 the chunk has
    first           0        |   2   |   2           the index of the chunk's first pair
    index           1 3      |       |   6 8
    value          -3 2      |       |   5 -4

`top_k` returns the k largest |x|. It estimates the threshold from a sample of one element in a
hundred. The j-th largest of s sampled elements is about the (j n / s)-th largest of all n elements.
The threshold is a little too low, so that a few more than k elements reach it. One pass over the
vector collects these elements, and the k largest are chosen among them. If fewer than k elements
reach the threshold, it is lowered, and the pass is repeated. So the sample changes how long `top_k`
takes, but never its result.

Used by: minidl/parallel/data/dgc.py. comm/codec.py packs the pairs, and comm/compressed.py adds
them.

Source: Lin, Han, Mao, Wang, Dally 2018, "Deep gradient compression" (arXiv 1712.01887).
Kernels: kernels/topk_mask.cu; on a CPU kernels/cpu/topk_mask.cu
Test: tests/parallel/data/test_topk_mask.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import BLOCK, CHUNK, contiguous, elementwise
from minidl.mode import or_numpy

FILE = "topk_mask.cu"


def by_numpy(x, threshold):
    """Returns (index, value) of the elements with |x| >= threshold. nan counts as large."""
    index = np.flatnonzero(~(np.abs(x) < threshold))
    return index, x[index]


def threshold_of(x, k):
    """Returns the k-th largest |x|, a float. At least k elements have an |x| of this size or more.
    Raises ValueError unless 1 <= k <= x.size."""
    if not 1 <= k <= x.size:
        raise ValueError(f"threshold_of wants k from 1 to {x.size}, the number of elements; got "
                         f"{k}")
    xp = backend.xp_of([x], "threshold_of")
    return float(xp.partition(xp.abs(x.reshape(-1)), x.size - k)[x.size - k])


def compact(x, threshold):
    """Finds the elements of the 1-d x with |x| >= threshold, by kernels. Returns two arrays (index,
    value), in the order of the indices. index is int32. Raises ValueError for another shape, or
    2**31 elements or more."""
    xp, n = backend.xp_of([x], "compact"), x.size
    if x.ndim != 1 or n >= 2**31:
        raise ValueError(f"compact wants a vector of fewer than 2**31 elements; got shape "
                         f"{x.shape}")
    x = contiguous(xp, x)
    n_chunks = -(-n // CHUNK)
    counts = xp.zeros(n_chunks, np.int32)
    launch(xp, "count_above", x, (counts, x, threshold, n, CHUNK, n_chunks))
    ends = xp.cumsum(counts, dtype=np.int32)
    total = int(ends[-1]) if n_chunks else 0
    index, value = xp.empty(total, np.int32), xp.empty(total, x.dtype)
    launch(xp, "compact", x, (index, value, x, ends - counts, threshold, n, CHUNK, n_chunks))
    return index, value


def compact_few(x, threshold, slots=64):
    """Returns the same pairs as compact, but in one pass over x, on a CPU. Returns None if a chunk
    of CHUNK elements has more than `slots` elements with |x| >= threshold."""
    n = x.size
    n_chunks = -(-n // CHUNK)
    counts = np.empty(n_chunks, np.int32)
    index, value = np.empty((n_chunks, slots), np.int32), np.empty((n_chunks, slots), x.dtype)
    launch(np, "compact_few", x, (counts, index, value, x, threshold, n, CHUNK, slots, n_chunks))
    if (counts > slots).any():
        return None
    used = np.arange(slots) < counts[:, None]
    return index[used], value[used]


@or_numpy
def taken(x, threshold):
    """Returns the same pairs as compact, by the function that is fastest for this array: by_numpy,
    compact_few or compact."""
    if not dispatch.usable(x) or x.dtype == np.float64:
        return by_numpy(x, threshold)
    x = contiguous(backend.xp_of([x], "top_k"), x)
    return isinstance(x, np.ndarray) and compact_few(x, threshold) or compact(x, threshold)


def top_k(x, k):
    """Finds the k elements of the 1-d x with the largest |x|. Returns two arrays (index, value) of
    k elements, in the order of the indices. index is int32.

    Among equal values the first ones are taken. nan counts as the largest of all, as in torch.topk.
    Raises ValueError unless 0 <= k <= x.size."""
    n, xp = x.size, backend.xp_of([x], "top_k")
    if not 0 <= k <= n:
        raise ValueError(f"top_k wants k from 0 to {n}, the number of elements; got {k}")
    if k in (0, n):
        return xp.arange(k, dtype=np.int32), x[:k].copy()
    sample, place = sample_of(x, k)
    while True:
        # If even the smallest sampled element is too large as a threshold, the threshold is 0.
        whole = place == len(sample) < n
        threshold = 0.0 if whole else float(xp.partition(sample, -place)[-place])
        index, value = taken(x, max(threshold, SMALLEST))
        if len(index) >= k:
            return largest(index, value, k)
        if threshold <= SMALLEST:
            return with_zeros(x, index, k)
        place = min(2 * place, len(sample))


# The threshold of top_k is at least this number. Smaller elements count as 0.
SMALLEST = float(np.finfo(np.float32).tiny)


def sample_of(x, k):
    """Returns (sample, j). sample: |x| of evenly spaced elements of x. top_k uses the j-th largest
    element of the sample as its threshold."""
    xp, n = backend.xp_of([x], "top_k"), x.size
    # the sample has on average at least 8 of the k largest elements (standard deviation 3)
    size = min(n, max(n // 100, 8 * n // k))
    step = n // size
    step -= step > 1 and step % 2 == 0  # an even step can always take the same columns of a matrix
    sample = size_of(xp, x[::step])
    expected = k * len(sample) / n
    # j is the expected number of large elements in the sample, plus four standard deviations. If
    # the sample is the whole vector, j is exactly k.
    extra = 4 * math.sqrt(expected) if step > 1 else 0
    return sample, min(len(sample), math.ceil(expected + extra))


def size_of(xp, x):
    """Returns |x|, with inf in place of nan."""
    size = xp.abs(x)
    return xp.where(xp.isnan(size), xp.inf, size).astype(x.dtype, copy=False)


def largest(index, value, k):
    """Returns the k pairs (index, value) with the largest |value|. Among equal values the first
    ones are taken."""
    if len(index) == k:
        return index.astype(np.int32), value
    xp = backend.xp_of([value], "top_k")
    size = size_of(xp, value)
    limit = xp.partition(size, len(size) - k)[len(size) - k]
    keep = size > limit
    equal = xp.flatnonzero(size == limit)
    keep[equal[: k - int(keep.sum())]] = True
    return index[keep].astype(np.int32), value[keep]


def with_zeros(x, index, k):
    """Returns k pairs (index, value): all elements of x that are not 0, and the first zeros of x.
    index: the indices of the elements that are not 0. There are fewer than k such elements."""
    xp = backend.xp_of([x], "top_k")
    keep = xp.zeros(x.size, bool)
    keep[:k] = True
    rest = xp.flatnonzero(keep)
    rest = rest[~xp.isin(rest, index)][: k - len(index)]
    index = xp.sort(xp.concatenate([index, rest])).astype(np.int32)
    return index, x[index]


def drop(x, threshold):
    """Sets x = 0 where |x| >= threshold, in place. Then x holds only the elements that compact(x,
    threshold) leaves out. x must be contiguous."""
    elementwise(FILE, "drop", x.dtype, x.size, (x, threshold, x.size))


def launch(xp, name, x, args):
    """Launches a kernel. On the CPU each chunk has a thread, on a GPU each chunk has a warp. args:
    the kernel's arguments; the last one is the number of chunks."""
    n_chunks = args[-1]
    if n_chunks and xp is np:
        dispatch.kernel(dispatch.on_cpu(FILE), name, x.dtype)(-(-n_chunks // 8), 8, args)
    elif n_chunks:
        dispatch.kernel(FILE, f"{name}_warps", x.dtype)(-(-n_chunks * 32 // BLOCK), BLOCK, args)
