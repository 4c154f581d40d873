"""Launches a kernel over elements, or over many arrays at once. All wrappers use it.

    arrays    |aaaaaaaaaa|bb|cccccc|        an optimizer's hundred parameters, of all sizes
    chunks     (0,0,4) (0,4,8) (0,8,10) (1,0,2) (2,0,4) (2,4,6)     (array, begin, end)
    pointers   [&a, &b, &c]

One launch for each array would cost some microseconds each. Small arrays would also leave most of a
GPU idle. Instead, one launch gets the table of addresses and the list of chunks. On the CPU a
thread works on a chunk, on a GPU a block does. A chunk may be from any array. Tables stay on the
GPU and are used again: weights do not move, and gradients are mostly at the same addresses as
before.

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

BLOCK = 256  # threads. Enough warps to hide a GPU's memory latency, and 255 registers a thread fit
LARGEST = 2**30  # elements of one launch. An int counts twice as far. A multiple of BLOCK
CHUNK = 8192  # elements: 32 KiB of float32. A second read finds them in the cache


def contiguous(xp, x):
    """Returns x, or a contiguous copy. A 0-d array stays 0-d (np.ascontiguousarray makes it
    1-d)."""
    return x if x.flags.c_contiguous else xp.ascontiguousarray(x)


def scratch(array, kind="workspace", of=None):
    """Adds an array that an op made for its own use to the running memory ledger, if there is one.
    Returns the array. Call it before the op makes its next array.

    kind: "workspace", or "temporary" for the array that becomes the op's result.
    of: the array that it was made from. If both use the same memory, nothing is added."""
    if (ledger := current().ledger) is not None:
        owner = buffer_of(array)
        if owner.flags.owndata and (of is None or owner is not buffer_of(of)):
            ledger.note(array, kind)
    return array


def elementwise(file, name, dtype, n, args, **defines):
    """Launches one thread for each of n elements. If n is 0, launches nothing.

    Kernels count in int. So more than LARGEST elements are launched in pieces: each array of n
    elements in `args` is cut, and the number n in `args` becomes the size of the piece."""
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
    """Launches one thread for each pack of 16 bytes, on a GPU. All arrays have one size and dtype.
    The kernel's last two parameters are the number of elements and the number of packs. More than
    LARGEST elements are launched in pieces."""
    n, size = arrays[0].size, 16 // dtype.itemsize
    for at in range(0, n, LARGEST):
        m, whole = min(LARGEST, n - at), n <= LARGEST
        piece = arrays if whole else [a.reshape(-1)[at:at + m] for a in arrays]
        n_packs = -(-m // size)
        kernel = dispatch.kernel(file, name, dtype, **defines)
        kernel(-(-n_packs // BLOCK), BLOCK, (*piece, m, n_packs))


def over_chunks(file, name, dtype, xp, sizes, args, **defines):
    """Launches one kernel over many arrays. On the CPU: the kernel `name`_chunks, a thread for each
    chunk. On a GPU: the kernel `name`_many, a block for each chunk.

    sizes: the element counts of the arrays. The kernel's last two parameters are the chunk list and
    its length."""
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
    """Returns the chunks of arrays with these sizes: (n_chunks, 3) int64. A row is (number of the
    array, begin, end)."""
    rows = [(i, at, min(at + CHUNK, n)) for i, n in enumerate(sizes) for at in range(0, n, CHUNK)]
    chunks = np.array(rows, np.int64).reshape(-1, 3)
    chunks.flags.writeable = False  # all callers get the same array
    return chunks


def pointers(xp, arrays, dtype, what, written=False):
    """Returns the addresses of `arrays`, uint64 (n,). Keep the arrays in a variable until the
    launch has ended.

    A launch cannot check arrays that it gets as addresses, so this function checks them. TypeError
    or ValueError if one is not a contiguous array of `dtype`, or is read-only but `written`.
    written: True if the kernel writes to them. what: begins the messages."""
    for i, a in enumerate(arrays):
        if not isinstance(a, xp.ndarray):  # a NumPy scalar has no address to pass
            raise TypeError(f"{what} {i}: want an array, of any number of dimensions; got "
                            f"{type(a).__name__} {a!r}. Wrap it: np.asarray(...)")
        if written and xp is np and not a.flags.writeable:
            raise ValueError(f"{what} {i}: the kernel writes to it, but the array is read-only")
        if a.dtype != dtype or not a.flags.c_contiguous:
            raise ValueError(
                f"{what} {i}: want a contiguous array of {np.dtype(dtype)}; got {a.dtype} of shape "
                f"{a.shape} with strides {a.strides}"
            )
    if xp is np:
        return np.array([address(a) for a in arrays], np.uint64)
    return on_device(xp, np.array([a.data.ptr for a in arrays], np.uint64))


def on_device(xp, table):
    """Returns a copy of a small host array on the current device. Equal tables share one copy, so
    do not write to it. The host does not wait: the stream that needs the table first copies it from
    pinned memory, and other streams wait for this copy."""
    if xp is np:
        return table
    if getattr(_graph, "pool", None):
        return _upload_for_graph(xp, table)
    device, stream = xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream()
    there, _, copied, by = _uploaded(xp, device, table.tobytes(), table.dtype, table.shape)
    if stream.ptr != by:
        stream.wait_event(copied)
    return there


@functools.lru_cache(maxsize=128)  # enough for a step's tables, which the next step mostly repeats
def _uploaded(xp, device, data, dtype, shape):
    """Returns (the device's array, the pinned array, the event at the end of the copy, the pointer
    of the stream that copies). The pinned array must be kept until the copy has ended."""
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
    """Returns the element counts of the arrays of a list. All lists must have the same counts,
    array by array, else ValueError."""
    sizes = [a.size for a in lists[0]]
    for other in lists[1:]:
        if [a.size for a in other] != sizes:
            raise ValueError(
                f"{op}: lists of arrays with different sizes, {sizes} and {[a.size for a in other]}"
            )
    return sizes
