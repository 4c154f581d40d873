"""Text for language models: the Python standard library's own source, as bytes.

    data      d0 d1 d2 d3 d4 ...      uint8: a vocabulary of 256 (for longer tokens: byte_pairs.py)
    inputs    d0 d1 d2                a window of T bytes, and
    targets      d1 d2 d3             the same window one byte later

This is megabytes of real text by many authors, on every machine that runs Python. Nothing needs a
download.
Test: tests/data/test_text.py   Tutorial: tutorials/train_gpt.py
"""

import itertools
import sysconfig
from pathlib import Path

import numpy as np

from minidl.random import Generator
from minidl.tensor import Tensor

# These folders are left out. Tests and code pages (encodings) are mostly data, not text. The user's
# packages differ between machines.
SKIP = {"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages", "__pycache__"}
# Weights and dropout use low random streams of the same seed. Samplers use the streams from 1 << 62
# on, and windows use the streams from 1 << 63 on.
WINDOW_STREAMS = 1 << 63


def stdlib_corpus(max_bytes=None, root=None):
    """Returns the text of the standard library's .py files, joined in the order of their names. It
    is a read-only array (n,), uint8.

    max_bytes: if given, only the first max_bytes bytes of the text are returned.
    root:      another folder of .py files.
    Another version of Python has another text. So if ranks run on different machines, one rank must
    send its text to the other ranks. Raises FileNotFoundError if no file can be read."""
    root = Path(root or sysconfig.get_path("stdlib"))
    chunks, n_bytes = [], 0
    for path in _python_files(root):
        if max_bytes is not None and n_bytes >= max_bytes:
            break
        try:
            chunks.append(path.read_bytes())
        except OSError:  # the file belongs to another user, or the link is broken
            continue
        n_bytes += len(chunks[-1])
    if not n_bytes:
        raise FileNotFoundError(f"no readable .py file in {root}. If this Python keeps its library "
                                "in another folder, pass this folder as root")
    return np.frombuffer(b"".join(chunks), np.uint8)[:max_bytes]


def _python_files(folder):
    # The files are sorted by name, because their order in a folder differs between machines.
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.is_dir():
            if path.name not in SKIP:
                yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


def split(data, validation=0.1):
    """Returns (train, validation), both views of `data`. validation: the fraction of `data` that is
    for validation. The part for validation is the end of `data`. `data` is the text of many files,
    one after another, so at most one file is in both parts."""
    n_train = len(data) - int(len(data) * validation)
    return data[:n_train], data[n_train:]


class Windows:
    """A dataset for evaluation. It cuts the text into windows of T = length bytes. Sample i is
    (inputs, targets), both (T,) int64. Its targets are the bytes i T + 1 ... (i + 1) T. Every byte
    is a target once, except the first byte and a last part that is shorter than T."""

    def __init__(self, data, length):
        self.data, self.length = data, length
        self.n_windows = (len(data) - 1) // length  # the last target needs one byte more
        if self.n_windows < 1:
            raise ValueError(f"windows of {length} bytes need a text of {length + 1} bytes or "
                             f"more; got {len(data)} bytes")

    def __len__(self):
        return self.n_windows

    def __getitem__(self, i):
        if not 0 <= i < self.n_windows:
            raise IndexError(f"Windows has {self.n_windows} windows; got the index {i}")
        start = i * self.length
        window = self.data[start : start + self.length + 1].astype(np.int64)
        return window[:-1], window[1:]  # (T,), (T,)


def spread(data, length, n):
    """Returns n windows at equal distances in the text. They are (inputs, targets), two Tensors of
    shape (n, length). Use them to evaluate a model on a part of a long text. If the text has fewer
    than n windows, some windows come twice."""
    windows = Windows(data, length)
    found = [windows[i] for i in np.linspace(0, len(windows) - 1, n).astype(int)]
    return tuple(Tensor(np.stack(part)) for part in zip(*found, strict=True))


def random_batches(data, batch_size, length, rank=0, size=1, seed=0, first_step=0):
    """Returns an endless iterator over batches of random windows: (inputs, targets), two Tensors
    (batch_size, length), int64.

    In each step all ranks together have batch_size * size windows. In step s the starts of these
    windows are drawn from (seed, s). Each rank takes its own batch_size windows. So all ranks
    together see the batch that one rank with batch size batch_size * size sees. To resume a run,
    pass `first_step`. The number of ranks may change if batch_size * size does not change."""
    n_places = len(data) - length  # the last window ends with the last byte as its target
    if n_places < 1:
        raise ValueError(f"windows of {length} bytes need a text of {length + 1} bytes or more; "
                         f"got {len(data)} bytes")
    if not 0 <= rank < size:
        raise ValueError(f"rank must be in [0, size), got rank {rank} of size {size}")
    offsets = np.arange(length + 1)

    def batch(step):
        places = Generator(seed, WINDOW_STREAMS + step).integers(0, n_places, (size, batch_size))
        window = data[places[rank][:, None] + offsets].astype(np.int64)  # (B, T + 1)
        return Tensor(window[:, :-1]), Tensor(window[:, 1:])

    return map(batch, itertools.count(first_step))
