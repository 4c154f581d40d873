"""Many arrays into one flat buffer and back, with a cast on the way, in one launch.

    arrays  |aaaa| |b| |cccccc|   --pack-->   flat  |aaaa|b|cccccc|   --unpack-->   arrays

What minidl/parallel/data/flat.py calls on a GPU, and where it casts. An array may be
anywhere and of any size; all have one dtype, the buffer may have another (fp16 gradients sum
in fp32).

Kernel: kernels/pack.cu   Test: tests/fused/test_pack.py
"""

import itertools

import numpy as np

from minidl import backend
from minidl.cuda import dispatch
from minidl.cuda.launch import contiguous, on_device, over_chunks, pointers


def reference(arrays, dtype):
    return np.concatenate([a.reshape(-1) for a in arrays]).astype(dtype)


def run(name, arrays, flat, args):
    """Launch pack or unpack; args: the kernel's first two arguments, in its order."""
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
    """Copy all elements of `arrays`, in order, into the 1-d `flat`, cast to its dtype."""
    if not arrays:
        return
    xp, dtype = backend.xp_of([flat, *arrays], "pack"), arrays[0].dtype
    arrays = [contiguous(xp, a) for a in arrays]
    run("pack", arrays, flat, (flat, pointers(xp, arrays, dtype, "pack: array")))


def unpack(flat, arrays):
    """Copy `flat` back into `arrays`, cast to their dtype: the inverse of pack."""
    if not arrays:
        return
    xp, dtype = backend.xp_of([flat, *arrays], "unpack"), arrays[0].dtype
    run("unpack", arrays, flat, (pointers(xp, arrays, dtype, "unpack: array", written=True), flat))
