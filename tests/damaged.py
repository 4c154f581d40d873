"""Damaged copies of a file's bytes, for tests of code that reads files from outside.

    for data in damaged(good):    1,000 copies (make test: 50): flipped bytes, cut, grown, zeroed
        ...                          the reader returns the right value or raises its own error
"""

import contextlib
import tracemalloc

import numpy as np

from tests.conftest import n_drawn

N = n_drawn(50, 1000)


def damaged(good, n=N, first=0):
    """Yields n damaged copies of the bytes `good`. Every run yields the same copies. first: the
    number of the first copy."""
    for seed in range(first, first + n):
        yield one(good, np.random.default_rng(seed))


def one(good, rng):
    data, where = bytearray(good), int(rng.integers(len(good)))
    kind = rng.choice(["bit", "byte", "number", "cut", "grown", "zeroed", "moved", "head"])
    if kind == "bit":
        data[where] ^= 1 << rng.integers(8)
    elif kind == "byte":
        for at in rng.integers(len(data), size=rng.integers(1, 9)):
            data[at] = rng.integers(256)
    elif kind == "number":  # replaces a size by an extreme number
        size = 1 << rng.integers(4)
        data[where:where + size] = (b"\xff" * size, b"\0" * (size - 1) + b"\x80")[rng.integers(2)]
    elif kind == "cut":
        del data[where:]
    elif kind == "grown":
        data[where:where] = rng.bytes(int(rng.integers(1, 100)))
    elif kind == "zeroed":
        data[where:where + 64] = bytes(len(data[where:where + 64]))
    elif kind == "moved":  # repeats a part
        data[where:where] = data[:int(rng.integers(1, 64))]
    else:  # changes the first bytes, where formats store sizes
        data[int(rng.integers(min(16, len(data))))] = rng.integers(256)
    return bytes(data)


@contextlib.contextmanager
def at_most(n_bytes):
    """`with at_most(n):` fails if the block takes more than n bytes of new memory for Python and
    NumPy."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= n_bytes, f"{peak:,} bytes at a time, wanted at most {n_bytes:,}"
