"""Dropout, and dropout with the residual addition after it, from random numbers that nobody stores.

    out_i = residual_i + x_i / (1 - p) if draw_i >= p * 2**32 else residual_i

draw_i is the generator's (minidl/random.py), to the bit, so the mask is that of
minidl/ops/dropout.py and the generator moves on as far. Saved: nothing; backward draws again.

Kernel: kernels/dropout_add.cu   Test: tests/fused/test_dropout_add.py
"""

import math

import numpy as np

from minidl import random
from minidl.function import Function
from minidl.fused.launch import contiguous, elementwise

FILE = "dropout_add.cu"


# ---- 1 reference ----


def reference(x, p, state):
    """x with dropout by the draws of a generator in `state`, (seed, stream, counter)."""
    generator = random.Generator()
    generator.set_state(state)
    keep = generator.bits(x.size).astype(np.uint64) >= math.ceil(p * 2**32)
    return x * keep.reshape(x.shape) * x.dtype.type(1 / (1 - p) if p < 1 else 0)


# ---- 2 launch ----


def reserve(generator, n):
    """(seed, stream, counter) for a call that uses n draws; the generator moves past them."""
    return (random.default_generator() if generator is None else generator).take(n)


def launch(name, out, inputs, p, state):
    """out = name(*inputs); all contiguous."""
    n8 = -(-out.size // random.DRAWS_PER_BLOCK)
    threshold = math.ceil(p * 2**32)
    if threshold == 2**32:  # no draw of 32 bits is as large: keep all, times nothing
        threshold, scale = 0, 0.0
    else:  # as the element type holds it, because the plain op multiplies by that
        scale = float(out.dtype.type(1 / (1 - p)))
    elementwise(FILE, name, out.dtype, n8, (out, *inputs, out.size, n8, *state, threshold, scale))


# ---- 3 Function ----


class Dropout(Function):
    """x keep / (1 - p). Saves nothing but three integers."""

    def forward(self, x, p, generator=None):
        self.p, self.state = p, reserve(generator, x.size)
        return self.masked(x)

    def backward(self, gy):
        return self.masked(gy)

    def masked(self, x):
        x = contiguous(self.xp, x)
        out = self.xp.empty_like(x)
        launch("dropout", out, (x,), self.p, self.state)
        return out


class DropoutAdd(Dropout):
    """residual + x keep / (1 - p). Saves nothing but three integers."""

    def forward(self, x, residual, p, generator=None):
        if x.shape != residual.shape or x.dtype != residual.dtype:
            raise ValueError(
                f"dropout_add: want equal shapes and dtypes; got {x.shape} of {x.dtype} "
                f"and {residual.shape} of {residual.dtype}"
            )
        self.p, self.state = p, reserve(generator, x.size)
        x, residual = contiguous(self.xp, x), contiguous(self.xp, residual)
        out = self.xp.empty_like(x)
        launch("dropout_add", out, (x, residual), p, self.state)
        return out

    def backward(self, gy):
        return self.masked(gy), gy


def check_probability(p, op):
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: p is the probability of zeroing an element, want 0 to 1, got {p}")


def dropout(input, p=0.5, training=True, *, generator=None):
    """Zero elements with probability p and scale the others by 1 / (1 - p); the input itself when
    not training. generator: minidl.random's default unless given."""
    check_probability(p, "dropout")
    if not training or p == 0:
        return input
    return Dropout.apply(input, p=p, generator=generator)


def dropout_add(input, residual, p=0.5, training=True, *, generator=None):
    """residual + dropout(input): the end of a transformer's sublayer. Equal shapes and dtypes."""
    check_probability(p, "dropout_add")
    if not training or p == 0:
        return residual + input
    return DropoutAdd.apply(input, residual, p=p, generator=generator)
