"""Puts many arrays into one flat buffer. Each array has a slot, and each rank has a part.

    parameters   w (2, 3)        b (3,)        flat   |w w w w w w|b b b|
    slots        [0, 6)          [6, 9)        2 ranks |--- 0 ---|-- 1 --|   chunks.bounds 0 5 9

One message for a hundred tensors costs one latency, not a hundred latencies. A flat buffer can be
cut evenly over ranks, for arrays of any shapes. ZeRO must know only the slots and the parts.

The buffer is a NumPy or a CuPy array, like the arrays. On a GPU one launch (`pack`) copies all
arrays. On the CPU a plain copy is as fast as the kernel if the dtypes are equal. If the copy
casts, the kernel takes a seventh of NumPy's time (100 arrays of 10,000 float16 elements into
float32).

Kernels: kernels/pack.cu; on a CPU kernels/cpu/pack.cu
Test: tests/parallel/data/test_flat.py, test_flat_kernel.py
Used in: data_parallel.py, bucket.py, zero.py
"""

import itertools
import math

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, on_device, over_chunks, pointers
from minidl.mode import or_numpy


def slots(shapes):
    """Returns a list of pairs (begin, end), one for each shape. The elements [begin, end) of the
    flat array belong to this shape. There is no padding between two slots."""
    result, at = [], 0
    for shape in shapes:
        n_elems = math.prod(shape)
        result.append((at, at + n_elems))
        at += n_elems
    return result


def within(shapes, low, high):
    """Finds the part of each slot that lies in the elements [low, high) of the flat array.

    Returns a list of triples (offset, first, end), one for each shape. The part consists of the
    elements [first, end) of the slot, counted from the slot's begin. In the flat array this part
    begins at element low + offset. The triple is (0, 0, 0) if the slot has no element in
    [low, high)."""
    result = []
    for begin, end in slots(shapes):
        a, b = max(begin, low), min(end, high)
        result.append((a - low, a - begin, b - begin) if a < b else (0, 0, 0))
    return result


def views(flat, shapes):
    """Returns views of the 1-d `flat` with the given shapes, one after another."""
    return [flat[begin:end].reshape(shape) for (begin, end), shape in zip(slots(shapes), shapes)]


def flatten(arrays, dtype=None):
    """Returns a new 1-d array with all elements of the arrays, in order. All arrays must have one
    dtype. dtype: the dtype of the result, by default the dtype of the arrays."""
    flat = backend.xp_of(arrays, "flatten").empty(
        sum(a.size for a in arrays), dtype or arrays[0].dtype)
    fill(flat, arrays)
    return flat


@or_numpy
def fill(flat, arrays):
    """Copies all elements of the arrays, in order, into the 1-d `flat`, and casts them to the dtype
    of `flat`."""
    if _kernel_pays(flat, arrays):
        pack(arrays, flat)
    else:
        for view, a in zip(views(flat, [a.shape for a in arrays]), arrays, strict=True):
            view[...] = a


@or_numpy
def unflatten(flat, arrays):
    """Copies the elements of `flat` into `arrays`, in order: the inverse of fill."""
    if _kernel_pays(flat, arrays):
        unpack(flat, arrays)
    else:
        for view, a in zip(views(flat, [a.shape for a in arrays]), arrays, strict=True):
            a[...] = view


def _kernel_pays(flat, arrays):
    on_cpu = isinstance(flat, np.ndarray)
    return ((not on_cpu or flat.dtype != arrays[0].dtype)
            and dispatch.usable(flat) and dispatch.usable(*arrays)
            and all(a.flags.c_contiguous for a in arrays))


def _launch(name, arrays, flat, args):
    """Launches pack or unpack. args: the kernel's first two arguments, in the kernel's order.
    Raises ValueError if the size of `flat` is not the sum of the arrays' sizes."""
    sizes = [a.size for a in arrays]
    if flat.ndim != 1 or not flat.flags.c_contiguous or flat.size != sum(sizes):
        raise ValueError(
            f"{name}: want a flat buffer of {sum(sizes)} elements; got shape {flat.shape}"
        )
    xp = backend.xp_of([flat], name)
    first = on_device(xp, np.array([*itertools.accumulate(sizes, initial=0)][:-1], np.int64))
    over_chunks("pack.cu", name, arrays[0].dtype, xp, sizes, (*args, first),
                U=dispatch.C_TYPES[flat.dtype])


def pack(arrays, flat):
    """A kernel copies all elements of `arrays`, in order, into the 1-d `flat`, and casts them to
    the dtype of `flat`."""
    if not arrays:
        return
    xp, dtype = backend.xp_of([flat, *arrays], "pack"), arrays[0].dtype
    arrays = [contiguous(xp, a) for a in arrays]
    _launch("pack", arrays, flat, (flat, pointers(xp, arrays, dtype, "pack: array")))


def unpack(flat, arrays):
    """A kernel copies the elements of `flat` into `arrays`, and casts them to the dtype of
    `arrays`. This is the inverse of pack."""
    if not arrays:
        return
    xp, dtype = backend.xp_of([flat, *arrays], "unpack"), arrays[0].dtype
    table = pointers(xp, arrays, dtype, "unpack: array", written=True)
    _launch("unpack", arrays, flat, (table, flat))
