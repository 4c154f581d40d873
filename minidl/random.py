"""Random numbers, computed from (seed, stream, counter). NumPy and CUDA give the same numbers.

    block(counter) = Philox-4x64-10(counter, key = (seed, stream)) = 4 words of 64 bits
                   = 8 draws of 32 bits, the low half of each word first

The state of a generator is three integers: (seed, stream, counter). If you save the state, draw,
restore the state and draw again, you get the same numbers. So recompute can repeat a dropout mask,
and a resumed run continues with the same bits. A kernel needs no state in memory: thread i computes
draw i by itself.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
NumPy has the same function in C, np.random.Philox. This file uses np.random.Philox.
Test: tests/test_random.py (the paper's known answers, a plain-Python Philox)
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

DRAWS_PER_BLOCK = 8
_MASK_256 = (1 << 256) - 1


class Generator:
    """A stream of random numbers that can be repeated.

    seed:     chooses the sequence, in [0, 2**64). It is usually the same on all ranks.
    stream:   chooses an independent sequence under the same seed, in [0, 2**64). For example, each
              rank, worker or epoch has its own stream.
    counter:  how many blocks of eight 32-bit draws have been used."""

    def __init__(self, seed: int = 0, stream: int = 0):
        for name, value in (("seed", seed), ("stream", stream)):
            if isinstance(value, str) or not 0 <= value < 1 << 64:
                raise ValueError(f"{name} must be in [0, 2**64), got {value!r}")
        self.seed, self.stream, self.counter = int(seed), int(stream), 0

    def get_state(self):
        """Returns the whole state: (seed, stream, counter)."""
        return self.seed, self.stream, self.counter

    def set_state(self, state: Any) -> None:
        self.seed, self.stream, self.counter = (int(v) for v in state)

    def manual_seed(self, seed: int) -> Generator:
        """Sets the seed, and sets the counter to 0. The stream does not change. Returns the
        generator."""
        self.__init__(seed, self.stream)
        return self

    def take(self, n):
        """Returns the state (seed, stream, counter) for a call that uses n draws. Then moves the
        counter past these draws, by ceil(n / 8)."""
        state = self.get_state()
        used = _used.get()
        if used is not None:
            used.setdefault(self, state)
        self.counter += -(-n // DRAWS_PER_BLOCK)
        return state

    def bits(self, n, draw=None):
        """Returns n draws of 32 random bits, (n,) uint32. Moves the counter by ceil(n / 8).

        draw: a function draw(state, n) that makes the bits. The methods below also take it. The
        default is host_bits. minidl.cuda.philox.bits makes the same bits on a GPU, and the result
        is then a CuPy array."""
        return (draw or host_bits)(self.take(n), n)

    def uniform(self, *shape, low=0.0, high=1.0, dtype: DTypeLike = np.float32, draw=None) -> Any:
        """Returns numbers that are uniform in [low, high). Takes the top 24 bits of a draw, divides
        them by 2**24, and scales the result. float32 can hold 24 bits exactly."""
        shape = _as_shape(shape)
        draws = self.bits(_numel(shape), draw)
        draws >>= np.uint32(8)  # in place, because the draws for a large weight need much memory
        u = draws.astype(np.float32)
        del draws
        u *= np.float32(2.0**-24)
        if (low, high) != (0.0, 1.0):
            u *= high - low
            u += low
        return u.astype(dtype, copy=False).reshape(shape)

    def normal(self, *shape, mean=0.0, std=1.0, dtype: DTypeLike = np.float32, draw=None) -> Any:
        """Returns numbers from a normal distribution, by the method of Box and Muller (1958): two
        draws give two numbers. The numbers of a CPU and of a GPU may differ by a rounding error of
        float64. The reason is that CPU and GPU compute log, sin and cos in different ways."""
        shape = _as_shape(shape)
        n = _numel(shape)
        draws = self.bits(2 * -(-n // 2), draw).astype(np.float64)
        u, angle = draws[0::2], draws[1::2] * (2 * np.pi * 2.0**-32)
        radius = np.sqrt(-2 * np.log((u + 1) * 2.0**-32))  # u + 1: never the log of zero
        z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:n]
        return (mean + std * z).reshape(shape).astype(dtype, copy=False)

    def integers(self, low, high, shape=(), dtype: DTypeLike = np.int64, draw=None) -> Any:
        """Returns random integers in [low, high). The bias is below (high - low) / 2**32. Raises
        ValueError unless 0 < high - low <= 2**32."""
        span = high - low
        if not 0 < span <= 1 << 32:
            raise ValueError(f"integers needs 0 < high - low <= 2**32, got low {low}, high {high}")
        shape = _as_shape((shape,))
        wide = self.bits(_numel(shape), draw).astype(np.uint64) * np.uint64(span) >> np.uint64(32)
        return (wide.astype(np.int64) + low).astype(dtype, copy=False).reshape(shape)

    def permutation(self, n, draw=None):
        """Returns range(n) in random order, (n,) int64. It is the order that sorts n random 64-bit
        keys."""
        return np.argsort(self.bits(2 * n, draw).view(np.uint64), kind="stable")

    def __repr__(self):
        return f"Generator(seed={self.seed}, stream={self.stream}) at counter {self.counter}"


def host_bits(state, n):
    """Returns n draws for a generator state (seed, stream, counter), computed by NumPy: (n,)
    uint32."""
    seed, stream, counter = state
    # NumPy's Philox adds 1 to its counter before it computes a block. So the counter must start one
    # block earlier.
    cipher = np.random.Philox(counter=(counter - 1) & _MASK_256, key=seed | stream << 64)
    return cipher.random_raw(4 * -(-n // DRAWS_PER_BLOCK)).view(np.uint32)[:n]


def _as_shape(shape):
    one = len(shape) == 1 and not isinstance(shape[0], (int, np.integer))
    return tuple(shape[0]) if one else shape


def _numel(shape):
    return math.prod(int(n) for n in shape)


# The default generator belongs to the context, not to the module. So each simulated rank (a
# greenlet with its own context) has its own default generator, just like each MPI rank (a process).
_default = ContextVar("minidl.random.default")
_used = ContextVar("minidl.random.used", default=None)


@contextmanager
def watched():
    """`with watched() as used:` fills the dict `used` with {generator: its state before its first
    draw}, for every generator that draws inside the block. memory/recompute.py restores these
    states before it runs the block a second time."""
    used = {}
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)
        outer = _used.get()
        if outer is not None:  # an outer block must note these generators, too
            for generator, state in used.items():
                outer.setdefault(generator, state)


def default_generator():
    """Returns the generator that ops use if no generator is passed. Its seed is 0 until
    `manual_seed` sets another seed."""
    return _default.get(None) or manual_seed(0)


def manual_seed(seed: int, stream: int = 0) -> Generator:
    """Sets a new default generator for this context (this rank), and returns it. Give each rank its
    own `stream` if ranks need different numbers (dropout). Leave `stream` out if all ranks need the
    same numbers (initial weights)."""
    generator = Generator(seed, stream)
    _default.set(generator)
    return generator


@contextmanager
def using(generator):
    """In the block `with using(generator):` `generator` is the default generator."""
    token = _default.set(generator)
    try:
        yield generator
    finally:
        _default.reset(token)
