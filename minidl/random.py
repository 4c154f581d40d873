"""Random numbers as a function of (seed, stream, counter): the same in NumPy and in CUDA.

    block(counter) = Philox-4x64-10(counter, key = (seed, stream)) = 4 words of 64 bits
                   = 8 draws of 32 bits, the low half of each word first

A generator is three integers, (seed, stream, counter). Save them, draw, put them back, draw again:
the same numbers. So recompute replays a dropout mask, a resumed run continues to the same bits, and
a kernel needs no generator state: thread i computes its own draw i.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
NumPy carries the same cipher in C (np.random.Philox), which does the work here.
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
    """A replayable stream of random numbers.
    seed:     chooses the sequence; usually equal on all ranks.
    stream:   64 bits, an independent sequence under the same seed: a rank, a worker, an epoch.
    counter:  blocks of eight 32-bit draws used so far."""

    def __init__(self, seed: int = 0, stream: int = 0):
        for name, value in (("seed", seed), ("stream", stream)):
            if isinstance(value, str) or not 0 <= value < 1 << 64:
                raise ValueError(f"{name} must be in [0, 2**64), got {value!r}")
        self.seed, self.stream, self.counter = int(seed), int(stream), 0

    def get_state(self):
        """(seed, stream, counter): all there is to know."""
        return self.seed, self.stream, self.counter

    def set_state(self, state: Any) -> None:
        self.seed, self.stream, self.counter = (int(v) for v in state)

    def manual_seed(self, seed: int) -> Generator:
        """Begins again with this seed, in the same stream. Returns the generator."""
        self.__init__(seed, self.stream)
        return self

    def take(self, n):
        """(seed, stream, counter) for a call that uses n draws; moves the counter past them, by
        ceil(n / 8)."""
        state = self.get_state()
        used = _used.get()
        if used is not None:
            used.setdefault(self, state)
        self.counter += -(-n // DRAWS_PER_BLOCK)
        return state

    def bits(self, n, draw=None):
        """n draws of 32 random bits, (n,) uint32; moves the counter by ceil(n / 8).

        draw: what makes them of the generator's state and n, here and below: host_bits unless
        given; minidl.cuda.philox.bits makes them on a GPU, the same ones, and then the result is a
        CuPy array."""
        return (draw or host_bits)(self.take(n), n)

    def uniform(self, *shape, low=0.0, high=1.0, dtype: DTypeLike = np.float32, draw=None) -> Any:
        """Uniform in [low, high): the top 24 bits of each draw over 2**24, exact in float32."""
        shape = _as_shape(shape)
        draws = self.bits(_numel(shape), draw)
        draws >>= np.uint32(8)  # in place, as all here: a large model's weights are made by this
        u = draws.astype(np.float32)
        del draws
        u *= np.float32(2.0**-24)
        if (low, high) != (0.0, 1.0):
            u *= high - low
            u += low
        return u.astype(dtype, copy=False).reshape(shape)

    def normal(self, *shape, mean=0.0, std=1.0, dtype: DTypeLike = np.float32, draw=None) -> Any:
        """Gaussian by Box and Muller (1958): two draws give two numbers. Equal on a CPU and a GPU
        up to a rounding of float64, where their log, sin and cos differ."""
        shape = _as_shape(shape)
        n = _numel(shape)
        draws = self.bits(2 * -(-n // 2), draw).astype(np.float64)
        u, angle = draws[0::2], draws[1::2] * (2 * np.pi * 2.0**-32)
        radius = np.sqrt(-2 * np.log((u + 1) * 2.0**-32))  # u + 1: never the log of zero
        z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:n]
        return (mean + std * z).reshape(shape).astype(dtype, copy=False)

    def integers(self, low, high, shape=(), dtype: DTypeLike = np.int64, draw=None) -> Any:
        """Integers in [low, high). The bias is below (high - low) / 2**32."""
        span = high - low
        if not 0 < span <= 1 << 32:
            raise ValueError(f"integers needs 0 < high - low <= 2**32, got low {low}, high {high}")
        shape = _as_shape((shape,))
        wide = self.bits(_numel(shape), draw).astype(np.uint64) * np.uint64(span) >> np.uint64(32)
        return (wide.astype(np.int64) + low).astype(dtype, copy=False).reshape(shape)

    def permutation(self, n, draw=None):
        """A random order of range(n): the sort order of n random 64-bit keys."""
        return np.argsort(self.bits(2 * n, draw).view(np.uint64), kind="stable")

    def __repr__(self):
        return f"Generator(seed={self.seed}, stream={self.stream}) at counter {self.counter}"


def host_bits(state, n):
    """n draws of a generator in `state`, (seed, stream, counter), by NumPy: (n,) uint32."""
    seed, stream, counter = state
    # NumPy's Philox counts up before it encrypts, so it starts one block earlier
    cipher = np.random.Philox(counter=(counter - 1) & _MASK_256, key=seed | stream << 64)
    return cipher.random_raw(4 * -(-n // DRAWS_PER_BLOCK)).view(np.uint32)[:n]


def _as_shape(shape):
    one = len(shape) == 1 and not isinstance(shape[0], (int, np.integer))
    return tuple(shape[0]) if one else shape


def _numel(shape):
    return math.prod(int(n) for n in shape)


# The default generator belongs to the context, not to the module: each simulated rank (a greenlet
# with a context of its own) has one, exactly as each MPI rank (a process) has one.
_default = ContextVar("minidl.random.default")
_used = ContextVar("minidl.random.used", default=None)


@contextmanager
def watched():
    """`with watched() as used:` fills `used` with {generator: its state before its first draw}, for
    every generator that draws inside the block: what a replay must put back (recompute.py)."""
    used = {}
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)
        outer = _used.get()
        if outer is not None:  # a block around this one sees the draws, too
            for generator, state in used.items():
                outer.setdefault(generator, state)


def default_generator():
    """The generator that ops use when none is passed: seed 0 until `manual_seed`."""
    return _default.get(None) or manual_seed(0)


def manual_seed(seed: int, stream: int = 0) -> Generator:
    """Restart the default generator of this context (of this rank) and return it. Give each rank
    its own `stream` where ranks must differ (dropout), none where they must agree (weights)."""
    generator = Generator(seed, stream)
    _default.set(generator)
    return generator


@contextmanager
def using(generator):
    """`with using(generator):` it is the default generator of the block."""
    token = _default.set(generator)
    try:
        yield generator
    finally:
        _default.reset(token)
