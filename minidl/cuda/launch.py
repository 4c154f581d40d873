"""Launches elementwise kernels, and kernels that work on many arrays in one launch.

    arrays    |aaaaaaaaaa|bb|cccccc|        an optimizer's hundred parameters, of all sizes
    chunks     (0,0,4) (0,4,8) (0,8,10) (1,0,2) (2,0,4) (2,4,6)     (array, begin, end)
    pointers   [&a, &b, &c]

A separate launch for each array costs some microseconds for each array. Also, a small array leaves
most of a GPU idle. Instead, one launch gets the table of addresses and the list of chunks. On the
CPU each thread works on one chunk. On a GPU each block works on one chunk. A chunk may be from any
array. Tables are kept on the GPU and used again, because weights do not move, and gradients are
mostly at the same addresses as before.

Test: tests/cuda/test_launch.py   Kernels that sum or normalise rows: rows.py
"""

import contextlib
import functools
import threading

import numpy as np

from minidl.backend import address, buffer_of
from minidl.cuda import dispatch
from minidl.cuda.host_memory import pinned, queue_copy
from minidl.mode import current

# Threads of a block. They are enough to hide memory latency, and each thread may use 255 registers.
BLOCK = 256
LARGEST = 2**30  # elements of one launch: half of what an int can count, and a multiple of BLOCK
CHUNK = 8192  # elements of a chunk. 32 KiB of float32 are still in the cache at a second read


def contiguous(xp, x):
    """Returns x, or a contiguous copy. A 0-d array stays 0-d (np.ascontiguousarray makes it
    1-d)."""
    return x if x.flags.c_contiguous else xp.ascontiguousarray(x)


def scratch(array, kind="workspace", of=None):
    """Records an array in the memory ledger, and returns it. An op has made this array for its own
    use. If no ledger is running, records nothing. Call scratch() before the op makes its next
    array.

    kind: "workspace", or "temporary" for the array that becomes the op's result.
    of:   the array from which `array` was made. If `array` uses the memory of `of`, nothing is
          recorded."""
    if (ledger := current().ledger) is not None:
        owner = buffer_of(array)
        if owner.flags.owndata and (of is None or owner is not buffer_of(of)):
            ledger.note(array, kind)
    return array


def elementwise(file, name, dtype, n, args, **defines):
    """Launches one thread for each of n elements. If n is 0, launches nothing.

    Kernels count elements with an int. So if n is more than LARGEST, the work is cut into several
    launches. Each launch gets a piece of each array of n elements in `args`. Instead of the number
    n in `args`, it gets the size of the piece."""
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
    """Launches one thread for each pack of 16 bytes, on a GPU. All arrays must have the same size
    and dtype. The kernel's last two parameters are the number of elements and the number of packs.
    More than LARGEST elements are cut into several launches."""
    n, size = arrays[0].size, 16 // dtype.itemsize
    for at in range(0, n, LARGEST):
        m, whole = min(LARGEST, n - at), n <= LARGEST
        piece = arrays if whole else [a.reshape(-1)[at:at + m] for a in arrays]
        n_packs = -(-m // size)
        kernel = dispatch.kernel(file, name, dtype, **defines)
        kernel(-(-n_packs // BLOCK), BLOCK, (*piece, m, n_packs))


def over_chunks(file, name, dtype, xp, sizes, args, **defines):
    """Launches one kernel over many arrays. On the CPU this is the kernel `name`_chunks, with a
    thread for each chunk. On a GPU this is the kernel `name`_many, with a block for each chunk.

    sizes: the number of elements of each array. The kernel's last two parameters are the chunk list
    and its length."""
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
    """Returns the chunks of arrays with these sizes: (n_chunks, 3) int64. Each row is (array
    number, begin, end)."""
    rows = [(i, at, min(at + CHUNK, n)) for i, n in enumerate(sizes) for at in range(0, n, CHUNK)]
    chunks = np.array(rows, np.int64).reshape(-1, 3)
    chunks.flags.writeable = False  # all callers get the same array
    return chunks


def pointers(xp, arrays, dtype, what, written=False):
    """Returns the addresses of `arrays`, uint64 (n,). Keep the arrays in a variable until the
    launch has ended.

    A launch that gets only addresses cannot check the arrays, so this function checks them. Raises
    TypeError or ValueError if one of `arrays` is not a contiguous array of `dtype`, or if it is
    read-only and `written` is True.
    written: True if the kernel writes to the arrays. what: the first words of the error
    messages."""
    for i, a in enumerate(arrays):
        if not isinstance(a, xp.ndarray):  # a NumPy scalar has no address to pass
            raise TypeError(f"{what} {i}: want an array, of any number of dimensions; got "
                            f"{type(a).__name__} {a!r}. Wrap it: np.asarray(...)")
        if written and xp is np and not a.flags.writeable:
            raise ValueError(f"{what} {i}: the kernel writes to this array, but it is read-only")
        if a.dtype != dtype or not a.flags.c_contiguous:
            raise ValueError(
                f"{what} {i}: want a contiguous array of {np.dtype(dtype)}; got {a.dtype} of shape "
                f"{a.shape} with strides {a.strides}"
            )
    if xp is np:
        return np.array([address(a) for a in arrays], np.uint64)
    return on_device(xp, np.array([a.data.ptr for a in arrays], np.uint64))


def on_device(xp, table):
    """Copies `table`, a small array of the host, to the current device. Returns the copy. Equal
    tables share one copy, so do not write to the copy. The host does not wait. The first stream
    that needs the table copies it from pinned memory, and the other streams wait for this copy."""
    if xp is np:
        return table
    if getattr(_graph, "pool", None):
        return _upload_for_graph(xp, table)
    device, stream = xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream()
    there, _, copied, by = _uploaded(xp, device, table.tobytes(), table.dtype, table.shape)
    if stream.ptr != by:
        stream.wait_event(copied)
    return there


@functools.lru_cache(maxsize=128)  # keeps all tables of a step, so that the next step finds them
def _uploaded(xp, device, data, dtype, shape):
    """Returns (the array on the device, the pinned array, the event at the end of the copy, the
    pointer of the copy's stream). The pinned array must be kept until the copy has ended."""
    host, stream = pinned(xp, len(data), np.uint8), xp.cuda.get_current_stream()
    host[...] = np.frombuffer(data, np.uint8)
    table = xp.empty(shape, dtype)
    if data:
        queue_copy(host, table, stream)
    return table, host, stream.record(), stream.ptr


_graph = threading.local()  # has the pool of this thread's capture, and the tables uploaded so far


@contextlib.contextmanager
def tables_of_a_graph(pool):
    """Use `with tables_of_a_graph(pool) as tables:` around the capture of a CUDA graph. In this
    block, each table that `on_device` returns is a new array from this pool. `on_device` fills the
    array before it returns, and appends the array to the list `tables`. Keep the list and the pool
    while the graph is in use.

    A table must not be in the graph's own pool. Memory of that pool may belong to an intermediate
    result of the graph. Then each replay writes this result over the table."""
    _graph.pool, _graph.tables = pool, []
    try:
        yield _graph.tables
    finally:
        _graph.pool = _graph.tables = None


def _upload_for_graph(xp, table):
    """Returns a copy of the table on the device. CuPy allows no copy from the host on a stream that
    is being captured. So another stream makes the copy, and the host waits for the copy."""
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
    """Returns the number of elements of each array in a list. Raises ValueError if array i does not
    have the same number of elements in all lists."""
    sizes = [a.size for a in lists[0]]
    for other in lists[1:]:
        if [a.size for a in other] != sizes:
            raise ValueError(
                f"{op}: wanted lists of arrays with the same sizes; got arrays of {sizes} and of "
                f"{[a.size for a in other]} elements"
            )
    return sizes
