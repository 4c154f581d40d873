"""Damaged copies of a file's bytes, for the tests of everything that reads files of others.

    for data in damaged(good):    1,000 of them (make test: 50): flipped bytes, cut, grown, zeroed
        ...                          it is read right, or refused by the reader's one class
"""

import contextlib
import tracemalloc

import numpy as np

from tests.conftest import EVERY

N = 1000 if EVERY else 50


def damaged(good, n=N, first=0):
    """Yields n damaged copies of the bytes `good`, the same ones each time. first: the number of
    the first one."""
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
    elif kind == "number":  # what a size becomes: the largest, the most negative
        size = 1 << rng.integers(4)
        data[where:where + size] = (b"\xff" * size, b"\0" * (size - 1) + b"\x80")[rng.integers(2)]
    elif kind == "cut":
        del data[where:]
    elif kind == "grown":
        data[where:where] = rng.bytes(int(rng.integers(1, 100)))
    elif kind == "zeroed":
        data[where:where + 64] = bytes(len(data[where:where + 64]))
    elif kind == "moved":  # a part of it twice
        data[where:where] = data[:int(rng.integers(1, 64))]
    else:  # the first bytes: where formats have their sizes
        data[int(rng.integers(min(16, len(data))))] = rng.integers(256)
    return bytes(data)


@contextlib.contextmanager
def at_most(n_bytes):
    """`with at_most(n):` fails if Python and NumPy hold n bytes more at any moment in it."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= n_bytes, f"{peak:,} bytes at a time, wanted at most {n_bytes:,}"
