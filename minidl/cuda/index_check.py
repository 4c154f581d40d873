"""Indices on a GPU, checked without waiting for it.

    launch       out = the indices, as int64; one that is out of range becomes 0 and leaves a note
    later        whoever waits for the device anyway (item, cpu, tolist, print, synchronize) looks
                 at the note, and the IndexError names the op and the index

A kernel that reads w[index] would otherwise read somebody else's memory, and CuPy's own take wraps
around in silence. The other way, a look at index.max() in every op, waits for all work before it:
the GPU then starves in every step. The note comes to the host with the number that is waited for:
its copy into pinned memory is put on the same stream before.
On the CPU the ops look at the indices themselves, at once.

Kernel: kernels/index_check.cu   Test: tests/cuda/test_index_check.py
"""

import functools
from contextlib import contextmanager

import numpy as np

from minidl import backend
from minidl.cuda.host_memory import pinned, queue_copy
from minidl.cuda.run import kernel

BLOCK = 256  # threads
C_TYPES = {"int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
           "uint64": "unsigned long long", "uint32": "unsigned int", "uint16": "unsigned short",
           "uint8": "unsigned char"}
NOBODY = -(2**63)  # an index that is ignored where none is


# ---- 1 reference ----


def reference(index, n, ignored=None, instead=0):
    """(the indices that are safe, the first bad one or None)."""
    good = (0 <= index) & (index < n)
    good |= False if ignored is None else index == ignored
    bad = index[~good]
    return np.where(good, index, instead).astype(np.int64), bad[0] if bad.size else None


# ---- 2 launch ----


def checked(op, index, n, ignored=None, low=0):
    """The indices of a CuPy array as int64, contiguous; those outside [low, n) are noted, and 0, or
    `ignored`, an index that is allowed beside the others, stands in their place."""
    if n <= 0 and index.size:  # none is right, also not 0
        raise IndexError(f"{op}: {index.size} indices into a dimension of {n}")
    xp = backend.xp_of([index])
    out = xp.empty(index.shape, np.int64)
    if index.size:
        notes = _notes(xp, index.device.id)
        text = f"{op}: an index, {{}}, is none of {low} to {n - 1}"
        index = xp.ascontiguousarray(index)
        other = NOBODY if ignored is None else ignored
        args = out, notes.device, index, index.size, low, n, other, ignored or 0, notes.site(text)
        _kernel(C_TYPES[index.dtype.name])(-(-index.size // BLOCK), BLOCK, args)
    return out


@functools.lru_cache(maxsize=None)
def _kernel(ctype):
    return kernel("index_check.cu", "index_check", defines={"I": ctype})


class Notes:
    """The note of one device: (site, index), 0 where all was well, and what the sites stand for."""

    def __init__(self, xp):
        self.xp, self.texts = xp, {}
        self.device = xp.zeros(2, np.uint64)
        self.host = pinned(xp, 2, np.uint64)
        self.host[...] = 0

    def site(self, text):
        return self.texts.setdefault(text, len(self.texts) + 1)

    def fetch(self):
        """Bring the note to the host behind the work so far; whoever waits for that has it."""
        queue_copy(self.device, self.host, self.xp.cuda.get_current_stream())

    def complain(self):
        """IndexError if there is a note; it is then forgotten."""
        site, index = self.host.tolist()
        if site:
            self.device.fill(0)
            text = list(self.texts)[site - 1].format(index - 2**64 if index >= 2**63 else index)
            raise IndexError(f"{text} (found on the GPU when its results were waited for)")


@functools.lru_cache(maxsize=None)
def _notes(xp, device):
    with xp.cuda.Device(device):
        return Notes(xp)


@contextmanager
def unnoted(xp):
    """A bad index that the current device meets inside leaves no note: for runs on memory that
    nobody has filled. Notes from before stay; nobody waits for the device inside."""
    notes = _notes(xp, xp.cuda.Device().id)
    before = notes.device.copy()
    try:
        yield
    finally:
        notes.device[...] = before


@contextmanager
def waiting(array):
    """Around a wait for `array`, of either library: a bad index that the device met is raised."""
    if isinstance(array, np.ndarray):
        yield
    else:
        with waiting_for_device(backend.library_of(array), array.device.id):
            yield


@contextmanager
def waiting_for_device(xp, device):
    """The same around a wait for a device of this number."""
    notes = _notes(xp, device)
    with xp.cuda.Device(device):
        notes.fetch()
        yield
        notes.complain()
