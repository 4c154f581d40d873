"""Checks indices on a GPU. The host does not wait for the GPU.

    launch       out = the indices, as int64. An index out of range becomes 0 and is recorded
    later        the next call that waits for the device (item, cpu, tolist, print, synchronize)
                 reads this record. If there is a bad index, this call raises IndexError with the
                 op and the index

Without a check, nobody notices a bad index. A kernel that reads w[index] reads the memory of
another array, and CuPy's own take wraps around. A test of index.max() in each op is slow: the host
waits for all earlier work. Then the GPU's queue is empty several times in every step. The record
needs no extra wait. Before the host waits for a number, it queues a copy of the record on the same
stream. This copy goes into pinned memory. On the CPU each op checks its indices before it uses
them.

Kernel: kernels/index_check.cu   Test: tests/cuda/test_index_check.py
"""

import functools
from contextlib import contextmanager

import numpy as np

from minidl import backend
from minidl.cuda.host_memory import pinned, queue_copy
from minidl.cuda.run import kernel

BLOCK = 256  # threads of a block
C_TYPES = {"int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
           "uint64": "unsigned long long", "uint32": "unsigned int", "uint16": "unsigned short",
           "uint8": "unsigned char"}
NOBODY = -(2**63)  # passed to the kernel if no index is ignored


# ---- 1 reference ----


def reference(index, n, ignored=None, instead=0):
    """Returns (safe indices as int64, the first bad index or None). An index is good if it is from
    0 to n - 1, or if it equals `ignored`. Each bad index is replaced by `instead`."""
    good = (0 <= index) & (index < n)
    good |= False if ignored is None else index == ignored
    bad = index[~good]
    return np.where(good, index, instead).astype(np.int64), bad[0] if bad.size else None


# ---- 2 launch ----


def checked(op, index, n, ignored=None, low=0):
    """Returns the indices in a CuPy array as an int64 array, contiguous and safe to use.

    An index is good if it is in [low, n) or equals `ignored`. A bad index is replaced by `ignored`,
    or by 0 if `ignored` is None. The bad index is also recorded for a later error. If n is 0 and
    there are indices, raises IndexError immediately. op: the op's name for the error message."""
    if n <= 0 and index.size:
        raise IndexError(f"{op}: got {index.size} indices into a dimension of size {n}, where no "
                         "index is valid")
    xp = backend.xp_of([index])
    out = xp.empty(index.shape, np.int64)
    if index.size:
        notes = _notes(xp, index.device.id)
        text = f"{op}: wanted indices from {low} to {n - 1}; got {{}}"
        index = xp.ascontiguousarray(index)
        other = NOBODY if ignored is None else ignored
        args = out, notes.device, index, index.size, low, n, other, ignored or 0, notes.site(text)
        _kernel(C_TYPES[index.dtype.name])(-(-index.size // BLOCK), BLOCK, args)
    return out


@functools.lru_cache(maxsize=None)
def _kernel(ctype):
    return kernel("index_check.cu", "index_check", defines={"I": ctype})


class Notes:
    """The record of a bad index on one device: (site, index). The site is the number of an error
    text in `texts`, counted from 1. If the site is 0, no index was bad."""

    def __init__(self, xp):
        self.xp, self.texts = xp, {}
        self.device = xp.zeros(2, np.uint64)
        self.host = pinned(xp, 2, np.uint64)
        self.host[...] = 0

    def site(self, text):
        return self.texts.setdefault(text, len(self.texts) + 1)

    def fetch(self):
        """Queues a copy of the record to the host, after all work so far. The copy has ended when
        the host has waited for the current stream."""
        queue_copy(self.device, self.host, self.xp.cuda.get_current_stream())

    def complain(self):
        """Raises IndexError if a bad index is recorded, and clears the record."""
        site, index = self.host.tolist()
        if site:
            self.device.fill(0)
            text = list(self.texts)[site - 1].format(index - 2**64 if index >= 2**63 else index)
            raise IndexError(f"{text} (found when the host waited for results of the GPU)")


@functools.lru_cache(maxsize=None)
def _notes(xp, device):
    with xp.cuda.Device(device):
        return Notes(xp)


@contextmanager
def unnoted(xp):
    """A `with` block in which a bad index on the current device is not recorded. In the block, ops
    may run on arrays that have no values yet. Such an array may hold any numbers as indices. A bad
    index that was recorded before the block is still reported. Do not wait for the device in the
    block."""
    notes = _notes(xp, xp.cuda.Device().id)
    before = notes.device.copy()
    try:
        yield
    finally:
        notes.device[...] = before


@contextmanager
def waiting(array):
    """A `with` block for code that waits for `array`, a NumPy or CuPy array. At the end of the
    block, raises IndexError if an op on the array's device got a bad index."""
    if isinstance(array, np.ndarray):
        yield
    else:
        with waiting_for_device(backend.library_of(array), array.device.id):
            yield


@contextmanager
def waiting_for_device(xp, device):
    """A `with` block for code that waits for the device with this number. At the end of the block,
    raises IndexError if an op on this device got a bad index."""
    notes = _notes(xp, device)
    with xp.cuda.Device(device):
        notes.fetch()
        yield
        notes.complain()
