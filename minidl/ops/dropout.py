"""Dropout (Srivastava et al. 2014): zero each element with probability p, scale the rest by
1 / (1 - p) so that the expectation stays.

    y_i = x_i / (1 - p) if draw_i >= p * 2**32 else 0      draw_i: 32 bits, uniform

draw_i is draw i of the generator at the moment of the call, i counted over x in C order. So the
mask is a function of three integers, and backward needs only those: it computes the mask again.
Saved: 0 bytes per element, where a mask would take 1 (and x itself 4). Price: the cipher runs
twice, about 3 ns an element on a CPU core and nothing beside the memory traffic on a GPU, where
each thread of a kernel computes its own draw.

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
        raise ValueError(f"{op}: p is the probability of zeroing an element, want 0 to 1, got {p}")


def keep_mask(xp, state, start, n, p):
    """Which of the elements start .. start + n of a call stay, (n,) bool.

    state: the generator's (seed, stream, counter) when the call was made."""
    generator = random.Generator()
    seed, stream, counter = state
    skip = start % random.DRAWS_PER_BLOCK
    generator.set_state((seed, stream, counter + start // random.DRAWS_PER_BLOCK))
    draws = generator.bits(skip + n, draw_on(xp))[skip:]  # on the device of what they are for
    threshold = math.ceil(p * 2**32)  # draws are whole: >= p * 2**32 is >= the next integer
    if threshold == 2**32:  # p = 1, a bound no 32-bit draw reaches
        return xp.zeros(n, bool)
    return draws >= np.uint32(threshold)


def reserve(generator, n):
    """The state for a call that uses n draws; the generator moves past them."""
    return (random.default_generator() if generator is None else generator).take(n)


def inverse_keep(p):
    """1 / (1 - p); 0 for p = 1, where nothing is left to scale."""
    return 1.0 / (1.0 - p) if p < 1 else 0.0


class Dropout(Function):
    """x * mask / (1 - p). Saves nothing: the mask comes again from (seed, stream, counter)."""

    state = None  # of the generator, before the draws of this call

    def forward(self, x, p, generator=None):
        if not backend.is_floating(x.dtype):
            raise TypeError(f"dropout: wants floating numbers, got {x.dtype}")
        self.p = p
        if self.state is None:  # a second forward, by NumPy, has the same draws
            self.state = reserve(generator, x.size)
        return pick(by_kernel, by_numpy, x)(x, p, self.state)

    def backward(self, gy):
        return pick(by_kernel, by_numpy, gy)(gy, self.p, self.state)


def by_numpy(x, p, state):
    """x with the elements dropped that the draws of `state` say, the others scaled."""
    y = x * keep_mask(backend.xp_of([x]), state, 0, x.size, p).reshape(x.shape)
    y *= x.dtype.type(inverse_keep(p))
    return y


def by_kernel(x, p, state):
    """The same: each thread makes its own draws."""
    xp = backend.xp_of([x])
    x = launch.contiguous(xp, x)
    if x.size > launch.LARGEST:  # in pieces, each from its own counter
        out, flat, (seed, stream, counter) = xp.empty_like(x), x.reshape(-1), state
        for at in range(0, x.size, launch.LARGEST):
            piece = slice(at, at + launch.LARGEST)
            state = seed, stream, counter + at // random.DRAWS_PER_BLOCK
            out.reshape(-1)[piece] = by_kernel(flat[piece], p, state)
        return out
    out, n8 = xp.empty_like(x), -(-x.size // random.DRAWS_PER_BLOCK)
    threshold, scale = limits(p)
    scale = float(x.dtype.type(scale))  # the plain op multiplies by what the element type holds
    args = out, x, x.size, n8, *state, threshold, scale
    file = on_cpu(FILE) if xp is np else FILE
    launch.elementwise(file, "dropout", x.dtype, n8, args)
    return out


def limits(p):
    """(threshold, scale): a draw of at least `threshold` keeps its element, times `scale`."""
    threshold = math.ceil(p * 2**32)
    # 2^32: no draw of 32 bits is as large, so keep all, times nothing
    return (threshold, 1 / (1 - p)) if threshold < 2**32 else (0, 0.0)


def dropout(input, p=0.5, training=True, *, generator=None):
    """Zero elements with probability p and scale the others by 1 / (1 - p); the input itself when
    not training. generator: minidl.random's default unless given."""
    check_probability(p)
    if not training or p == 0:
        return wrapped(input)
    return Dropout.apply(input, p=p, generator=generator)
