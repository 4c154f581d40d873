"""What the wrappers share: a launch over elements, and over many arrays at once.

    arrays    |aaaaaaaaaa|bb|cccccc|        an optimizer's hundred parameters, of all sizes
    chunks     (0,0,4) (0,4,8) (0,8,10) (1,0,2) (2,0,4) (2,4,6)     (array, begin, end)
    pointers   [&a, &b, &c]

A launch per array would cost some microseconds each and leave small arrays without parallelism. The
kernel instead gets the table of addresses and the list of chunks: a chunk is a thread's work on the
CPU, a block's on a GPU, whatever array it is from. A GPU keeps tables that it has: weights do not
move, and gradients mostly come back to where they were.

Test: tests/cuda/test_launch.py   Rows that are summed or normalised: rows.py
"""

import contextlib
import functools
import threading

import numpy as np

from minidl.backend import address, buffer_of
from minidl.cuda import dispatch
from minidl.cuda.host_memory import pinned, queue_copy
from minidl.mode import current

BLOCK = 256  # threads; enough warps to hide a GPU's memory latency, and any register count fits
LARGEST = 2**30  # elements of one launch: half of what an int counts to, and a multiple of blocks
CHUNK = 8192  # elements: 32 KiB of float32, so that a second look finds them in the cache


def contiguous(xp, x):
    """x, or a contiguous copy (np.ascontiguousarray alone would give a 0-d array a dimension)."""
    return x if x.flags.c_contiguous else xp.ascontiguousarray(x)


def scratch(array, kind="workspace", of=None):
    """Tell the running memory ledger, if any, of an array that an op makes for itself, before the
    next one is made; returns it. kind: "temporary" of what will be the op's result.
    of: what it was made from, where it may be no copy but the same memory."""
    if (ledger := current().ledger) is not None:
        owner = buffer_of(array)
        if owner.flags.owndata and (of is None or owner is not buffer_of(of)):
            ledger.note(array, kind)
    return array


def elementwise(file, name, dtype, n, args, **defines):
    """One thread for each of n elements; nothing where there is no work. Kernels count in int: more
    elements than LARGEST are launched in pieces, of the arrays of n elements and of the number n
    among args."""
    if n > LARGEST:
        for at in range(0, n, LARGEST):
            m = min(LARGEST, n - at)
            piece = tuple(m if type(a) is int and a == n else
                          a.reshape(-1)[at:at + m] if getattr(a, "size", 0) == n else a
                          for a in args)
            elementwise(file, name, dtype, m, piece, **defines)
    elif n:
        dispatch.kernel(file, name, dtype, **defines)(-(-n // BLOCK), BLOCK, args)


def in_packs(file, name, dtype, arrays, **defines):
    """A GPU's launch over elements: a thread for each 16 bytes of arrays of one size and dtype; the
    kernel's last two parameters are the numbers of elements and of packs. In pieces, as above."""
    n, size = arrays[0].size, 16 // dtype.itemsize
    for at in range(0, n, LARGEST):
        m, whole = min(LARGEST, n - at), n <= LARGEST
        piece = arrays if whole else [a.reshape(-1)[at:at + m] for a in arrays]
        n_packs = -(-m // size)
        kernel = dispatch.kernel(file, name, dtype, **defines)
        kernel(-(-n_packs // BLOCK), BLOCK, (*piece, m, n_packs))


def over_chunks(file, name, dtype, xp, sizes, args, **defines):
    """`name`_chunks with a thread per chunk on the CPU, `name`_many with a block per chunk on a
    GPU. The kernel's last two parameters are the chunk list and its length."""
    chunks = chunk_list(tuple(sizes))
    n = len(chunks)
    if n and xp is np:
        kernel = dispatch.kernel(dispatch.on_cpu(file), f"{name}_chunks", dtype, **defines)
        kernel(-(-n // 8), 8, (*args, chunks, n))
    elif n:
        kernel = dispatch.kernel(file, f"{name}_many", dtype, **defines)
        kernel(n, BLOCK, (*args, on_device(xp, chunks), n))


@functools.lru_cache(maxsize=64)
def chunk_list(sizes):
    """(n_chunks, 3) int64: array, begin, end of every chunk of arrays with these sizes."""
    rows = [(i, at, min(at + CHUNK, n)) for i, n in enumerate(sizes) for at in range(0, n, CHUNK)]
    chunks = np.array(rows, np.int64).reshape(-1, 3)
    chunks.flags.writeable = False  # the cache hands out one and the same
    return chunks


def pointers(xp, arrays, dtype, what, written=False):
    """The addresses of `arrays`, uint64. The arrays must outlive the launch: keep them in a name.

    A table of addresses hides the arrays from the launch's own checks, so they are made here.
    written: whether the kernel writes to them."""
    for i, a in enumerate(arrays):
        if not isinstance(a, xp.ndarray):  # the address of NumPy's numbers is none of elements
            raise TypeError(f"{what} {i}: want an array, of any number of dimensions; got "
                            f"{type(a).__name__} {a!r}. Wrap it: np.asarray(...)")
        if written and xp is np and not a.flags.writeable:
            raise ValueError(f"{what} {i}: is to be written, but the array is read-only")
        if a.dtype != dtype or not a.flags.c_contiguous:
            raise ValueError(
                f"{what} {i}: want a contiguous array of {np.dtype(dtype)}; got {a.dtype} of shape "
                f"{a.shape} with strides {a.strides}"
            )
    if xp is np:
        return np.array([address(a) for a in arrays], np.uint64)
    return on_device(xp, np.array([a.data.ptr for a in arrays], np.uint64))


def on_device(xp, table):
    """A small array of the host on the current device, of equal tables one and the same: it is not
    to be written. No wait: it goes through pinned memory, on the stream that wants it first; other
    streams go on after it."""
    if xp is np:
        return table
    if getattr(_graph, "pool", None):
        return _upload_for_graph(xp, table)
    device, stream = xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream()
    there, _, copied, by = _uploaded(xp, device, table.tobytes(), table.dtype, table.shape)
    if stream.ptr != by:
        stream.wait_event(copied)
    return there


@functools.lru_cache(maxsize=128)  # of a step: chunks, and addresses, which mostly come again
def _uploaded(xp, device, data, dtype, shape):
    """(the device's array, the pinned one, which must outlive the copy, the event that the copy is
    done, the stream that does it)."""
    host, stream = pinned(xp, len(data), np.uint8), xp.cuda.get_current_stream()
    host[...] = np.frombuffer(data, np.uint8)
    table = xp.empty(shape, dtype)
    if data:
        queue_copy(host, table, stream)
    return table, host, stream.record(), stream.ptr


_graph = threading.local()  # of this thread's capture: its pool, and the tables uploaded so far


@contextlib.contextmanager
def tables_of_a_graph(pool):
    """`with tables_of_a_graph(pool) as tables:` around the capture of a CUDA graph. Each table of
    `on_device` is a new one from this pool, filled at once, and in the list `tables`. Hold the list
    and the pool as long as the graph is replayed.

    A table may not come from the graph's own pool: a replay would overwrite it, if its memory was
    an intermediate result's before."""
    _graph.pool, _graph.tables = pool, []
    try:
        yield _graph.tables
    finally:
        _graph.pool = _graph.tables = None


def _upload_for_graph(xp, table):
    """Returns the table on the device. CuPy allows no copy from the host on a stream that is
    captured, so another stream does it, and the host waits for it."""
    host = pinned(xp, table.nbytes, np.uint8)
    host[...] = np.frombuffer(table.tobytes(), np.uint8)
    stream = xp.cuda.Stream(non_blocking=True)
    with stream, xp.cuda.using_allocator(_graph.pool.malloc):
        there = xp.empty(table.shape, table.dtype)
        if table.nbytes:
            queue_copy(host, there, stream)
    stream.synchronize()
    _graph.tables.append(there)
    return there


def same_sizes(op, *lists):
    """The element counts of the arrays; ValueError unless the lists agree, array by array."""
    sizes = [a.size for a in lists[0]]
    for other in lists[1:]:
        if [a.size for a in other] != sizes:
            raise ValueError(
                f"{op}: lists of arrays with different sizes, {sizes} and {[a.size for a in other]}"
            )
    return sizes
