"""Dropout sets each element to zero with probability p. It multiplies all other elements by
1 / (1 - p), so that the expected value does not change.

    y_i = x_i / (1 - p) if draw_i >= p * 2**32 else 0      draw_i: 32 bits, uniform

A draw is a random number. draw_i is draw i of the generator, counted from the generator's state at
the call. i counts the elements of x in C order. So the state (three integers) determines the mask.
Only the state is saved, and backward computes the mask again. A saved mask needs 1 byte for each
element; x needs 4 bytes. But the random numbers are computed twice. This takes about 3 ns for each
element on a CPU core. On a GPU each thread computes its own draws, while it waits for memory.

Source: Srivastava et al. 2014.
Kernels: kernels/dropout.cu; on a CPU kernels/cpu/dropout.cu
Test: tests/ops/test_dropout.py, test_dropout_kernel.py
"""

import math

import numpy as np

from minidl import backend, random
from minidl.cuda import launch
from minidl.cuda.dispatch import on_cpu, pick
from minidl.cuda.philox import draw_on
from minidl.function import Function
from minidl.tensor import wrapped

FILE = "dropout.cu"


def check_probability(p, op="dropout"):
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: p, the probability that an element becomes 0, must be from 0 to "
                         f"1; got {p}")


def keep_mask(xp, state, start, n, p):
    """Returns a bool array (n,) for the elements start ... start + n - 1 of a call: True where
    dropout keeps the element.

    state: the generator's (seed, stream, counter) at the call."""
    generator = random.Generator()
    seed, stream, counter = state
    skip = start % random.DRAWS_PER_BLOCK
    generator.set_state((seed, stream, counter + start // random.DRAWS_PER_BLOCK))
    draws = generator.bits(skip + n, draw_on(xp))[skip:]  # makes the draws on the device of xp
    threshold = math.ceil(p * 2**32)  # draws are integers, so the bound can be rounded up
    if threshold == 2**32:  # for p = 1, no 32-bit draw is as large as the bound
        return xp.zeros(n, bool)
    return draws >= np.uint32(threshold)


def reserve(generator, n):
    """Returns the generator's state for a call that uses n random numbers. Moves the generator past
    these numbers."""
    return (random.default_generator() if generator is None else generator).take(n)


def inverse_keep(p):
    """Returns 1 / (1 - p), or 0 for p = 1, where all elements are dropped."""
    return 1.0 / (1.0 - p) if p < 1 else 0.0


class Dropout(Function):
    """x * mask / (1 - p). Saves no array: backward computes the mask again from (seed, stream,
    counter)."""

    state = None  # the state of the generator before the draws of this call

    def forward(self, x, p, generator=None):
        if not backend.is_floating(x.dtype):
            raise TypeError(f"dropout: wants floating numbers, got {x.dtype}")
        self.p = p
        if self.state is None:  # a second forward (after NoRoom) uses the same draws
            self.state = reserve(generator, x.size)
        return pick(by_kernel, by_numpy, x)(x, p, self.state)

    def backward(self, gy):
        return pick(by_kernel, by_numpy, gy)(gy, self.p, self.state)


def by_numpy(x, p, state):
    """Returns x after dropout. The random numbers of `state` choose the elements that become 0. All
    other elements are multiplied by 1 / (1 - p)."""
    y = x * keep_mask(backend.xp_of([x]), state, 0, x.size, p).reshape(x.shape)
    y *= x.dtype.type(inverse_keep(p))
    return y


def by_kernel(x, p, state):
    """Returns the same as by_numpy. Each thread computes its own random numbers."""
    xp = backend.xp_of([x])
    x = launch.contiguous(xp, x)
    if x.size > launch.LARGEST:  # launches the kernel for each piece. A piece has its own counter
        out, flat, (seed, stream, counter) = xp.empty_like(x), x.reshape(-1), state
        for at in range(0, x.size, launch.LARGEST):
            piece = slice(at, at + launch.LARGEST)
            state = seed, stream, counter + at // random.DRAWS_PER_BLOCK
            out.reshape(-1)[piece] = by_kernel(flat[piece], p, state)
        return out
    out, n8 = xp.empty_like(x), -(-x.size // random.DRAWS_PER_BLOCK)
    threshold, scale = limits(p)
    scale = float(x.dtype.type(scale))  # rounded to the element type, as by_numpy does
    args = out, x, x.size, n8, *state, threshold, scale
    file = on_cpu(FILE) if xp is np else FILE
    launch.elementwise(file, "dropout", x.dtype, n8, args)
    return out


def limits(p):
    """Returns (threshold, scale). If an element's random number is at least `threshold`, the
    element is kept, and multiplied by `scale`."""
    threshold = math.ceil(p * 2**32)
    # 2^32 does not fit in 32 bits. So for p = 1 all elements are kept, but are multiplied by 0.
    return (threshold, 1 / (1 - p)) if threshold < 2**32 else (0, 0.0)


def dropout(input, p=0.5, training=True, *, generator=None):
    """Sets elements to zero with probability p, and multiplies all other elements by 1 / (1 - p).
    Returns the input itself if training is False. generator: the default is the generator of this
    context (minidl.random)."""
    check_probability(p)
    if not training or p == 0:
        return wrapped(input)
    return Dropout.apply(input, p=p, generator=generator)
