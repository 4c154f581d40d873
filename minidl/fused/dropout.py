"""Dropout from random numbers that nobody stores.

    out_i = x_i / (1 - p) if draw_i >= p * 2**32 else 0

draw_i is the generator's (minidl/random.py), to the bit, so the mask is that of
minidl/ops/dropout.py and the generator moves on as far. Saved: nothing; backward draws again.

Kernel: kernels/dropout.cu   Op: minidl/ops/dropout.py   Test: tests/fused/test_dropout.py
"""

import math

import numpy as np

from minidl import backend, random
from minidl.cuda import launch
from minidl.cuda.launch import contiguous, elementwise

FILE = "dropout.cu"


# ---- 1 reference ----


def reference(x, p, state):
    """x with dropout by the draws of a generator in `state`, (seed, stream, counter)."""
    generator = random.Generator()
    generator.set_state(state)
    keep = generator.bits(x.size).astype(np.uint64) >= math.ceil(p * 2**32)
    return x * keep.reshape(x.shape) * x.dtype.type(1 / (1 - p) if p < 1 else 0)


# ---- 2 launch ----


def dropout(x, p, state):
    """x keep / (1 - p), in new memory."""
    xp = backend.xp_of([x])
    x = contiguous(xp, x)
    if x.size > launch.LARGEST:  # in pieces, each from its own counter
        out, flat, (seed, stream, counter) = xp.empty_like(x), x.reshape(-1), state
        for at in range(0, x.size, launch.LARGEST):
            piece = slice(at, at + launch.LARGEST)
            there = seed, stream, counter + at // random.DRAWS_PER_BLOCK
            out.reshape(-1)[piece] = dropout(flat[piece], p, there)
        return out
    out, n8 = xp.empty_like(x), -(-x.size // random.DRAWS_PER_BLOCK)
    threshold, scale = limits(p)
    scale = float(x.dtype.type(scale))  # the plain op multiplies by what the element type holds
    args = out, x, x.size, n8, *state, threshold, scale
    elementwise(FILE, "dropout", x.dtype, n8, args)
    return out


def limits(p):
    """(threshold, scale): a draw of at least `threshold` keeps its element, times `scale`."""
    threshold = math.ceil(p * 2**32)
    # 2^32: no draw of 32 bits is as large, so keep all, times nothing
    return (threshold, 1 / (1 - p)) if threshold < 2**32 else (0, 0.0)
