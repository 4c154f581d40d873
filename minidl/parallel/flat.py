"""Many arrays as one: a flat buffer, its slots, and its partition over ranks.

    parameters   w (2, 3)        b (3,)        flat   |w w w w w w|b b b|
    slots        [0, 6)          [6, 9)        2 ranks |--- 0 ---|-- 1 --|   bounds 0 5 9

One message for a hundred tensors costs one latency, not a hundred; and a flat buffer can be cut
evenly over ranks whatever the shapes, which is the whole of ZeRO's bookkeeping.

Test: tests/parallel/test_flat.py   Used in: data_parallel.py, bucket.py
"""

import math

import numpy as np

from minidl.comm import chunks

partition_bounds = chunks.bounds  # [b0, ..., bn]: rank r owns elements [b[r], b[r+1])


def slots(shapes):
    """[(begin, end)] of each shape's elements, one after another without padding."""
    result, at = [], 0
    for shape in shapes:
        n_elems = math.prod(shape)
        result.append((at, at + n_elems))
        at += n_elems
    return result


def views(flat, shapes):
    """Views of the 1-d `flat` with the given shapes, one after another."""
    return [flat[begin:end].reshape(shape)
            for (begin, end), shape in zip(slots(shapes), shapes)]


def flatten(arrays, dtype=None):
    """A new 1-d array of all elements, in order; `dtype` defaults to the common one. Empty list:
    an empty float32 array."""
    arrays = list(arrays)
    if not arrays:
        return np.empty(0, dtype or np.float32)
    dtype = dtype or np.result_type(*(a.dtype for a in arrays))
    flat = np.empty(sum(a.size for a in arrays), dtype)
    for view, a in zip(views(flat, [a.shape for a in arrays]), arrays):
        view[...] = a
    return flat


def unflatten(flat, arrays):
    """Copy the elements of `flat` into `arrays`, in order: the inverse of flatten."""
    n_elems = sum(a.size for a in arrays)
    if flat.size != n_elems:
        raise ValueError(f"unflatten: {flat.size} elements for arrays of {n_elems} in all")
    for view, a in zip(views(flat, [a.shape for a in arrays]), arrays):
        a[...] = view


def by_dtype(tensors):
    """{dtype: [tensor, ...]} in order of first appearance: one flat buffer each."""
    groups = {}
    for x in tensors:
        groups.setdefault(x.dtype, []).append(x)
    return groups
