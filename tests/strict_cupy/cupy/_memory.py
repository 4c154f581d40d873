"""Device memory and pinned memory: allocations, their history, and copies that are running."""

import bisect
import ctypes
import weakref

import numpy as np
from cupy import _count, _streams
from cupy._streams import LOCK, Race, touch

ROUND = 512  # bytes to which CuPy's pool rounds up
_freed = {}  # {(device, queue number, rounded size): logs of memory that other streams touched}
hooks = []


class Block:
    """One allocation of device memory: NumPy's memory, and the log of the accesses to it.

    CuPy's pool gives freed memory to the stream that allocated it, even if other streams still use
    it. Here the new memory inherits the log, so that such a use is found."""

    __slots__ = ("log", "device", "queue", "n_bytes", "__weakref__")

    def __init__(self, n_bytes):
        self.queue = _streams.current_queue()
        self.device, self.n_bytes = self.queue.device, -(-n_bytes // ROUND) * ROUND
        before = _freed.get((self.device, self.queue.id, self.n_bytes)) if _freed else None
        self.log = before.pop() if before else []
        used[self.device] += self.n_bytes
        for hook in hooks:
            hook.malloc_postprocess(device_id=self.device, size=n_bytes, mem_size=self.n_bytes,
                                    mem_ptr=0, pmem_id=0)

    def __del__(self):
        if used is None:  # at the end of Python
            return
        used[self.device] -= self.n_bytes
        if self.n_bytes and any(a.queue is not self.queue for a in self.log):
            for a in self.log:
                a.lo, a.hi = 0, 1 << 62  # these accesses cover all of the new memory
            key = self.device, self.queue.id, self.n_bytes
            _freed.setdefault(key, []).append(self.log)


used = [0] * _streams.N_DEVICES


class Pool:
    """cupy.cuda.MemoryPool without a limit. It keeps no freed memory."""

    def used_bytes(self):
        return used[_streams.current_device()]

    def total_bytes(self):
        return self.used_bytes()

    def free_bytes(self):
        return 0

    def n_free_blocks(self):
        return 0

    def free_all_blocks(self, stream=None):
        pass

    def set_limit(self, size=None, fraction=None):
        pass


class MemoryHook:
    """cupy.cuda.MemoryHook."""

    name = "MemoryHook"

    def __enter__(self):
        hooks.append(self)
        return self

    def __exit__(self, *_):
        hooks.remove(self)

    def _nothing(self, **_):
        pass

    alloc_preprocess = alloc_postprocess = malloc_preprocess = malloc_postprocess = _nothing
    free_preprocess = free_postprocess = _nothing


_asked = weakref.WeakValueDictionary()  # {address: the array, or the base of the view, that has it}


def bytes_of(pointer, n_bytes):
    """Returns up to n_bytes bytes at a device address, as a device array of uint8. The code must
    have asked an array for this address."""
    whole = _asked.get(pointer)
    if whole is None:
        return None
    flat = whole._a.reshape(-1, order="A").view(np.uint8)  # allocated memory has no gaps
    first = pointer - flat.ctypes.data
    return whole._view(flat[first:first + n_bytes])


class MemoryPointer:
    """x.data of a device array."""

    def __init__(self, array):
        self._array, self.device_id = array, array._device
        self.ptr = array._a.__array_interface__["data"][0] if array.nbytes else 0
        _asked[self.ptr] = array if array.base is None else array.base

    device = property(lambda self: _streams.Device(self.device_id))

    def __int__(self):
        return self.ptr

    def _sized(self, size):
        if not self._array._a.flags.c_contiguous or size > self._array.nbytes:
            raise Race(f"stand-in: a copy of {size} bytes at an array of {self._array.nbytes}, "
                       f"strides {self._array.strides}")
        return self._array

    def copy_to_host_async(self, mem, size, stream=None):
        download(self._sized(size), address(mem), size, _streams.queue_of(stream))

    def copy_from_host_async(self, mem, size, stream=None):
        upload(self._sized(size), address(mem), size, _streams.queue_of(stream))

    def copy_to_host(self, mem, size):
        _count.waits("copy_to_host")
        queue = _streams.current_queue()
        download(self._sized(size), address(mem), size, queue)
        _streams.synchronize(queue)

    def copy_from_host(self, mem, size):
        _count.waits("copy_from_host")
        queue = _streams.current_queue()
        upload(self._sized(size), address(mem), size, queue)
        _streams.synchronize(queue)


def address(mem):
    if isinstance(mem, ctypes.c_void_p):
        return mem.value or 0
    return int(mem)


def bytes_at(pointer, size):
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))


# ---- pinned memory ----


class _Pages:
    """Pinned memory of the pool. It is never freed, so a late copy still finds it."""

    def __init__(self, size):
        self.bytes, self.log = np.empty(size, np.uint8).view(PinnedMemoryPointer), []
        self.start = self.bytes.ctypes.data


_pages, _starts, _free = [], [], {}  # sorted by address


class PinnedMemoryPointer(np.ndarray):
    """The result of alloc_pinned_memory. Its bytes are rubbish (0xEE) at first, and again when no
    array holds them.

    CuPy's class is no array but has a buffer. A Python class cannot have a buffer before 3.12."""

    ptr = property(lambda self: self.ctypes.data)
    mem = property(lambda self: self)

    def __int__(self):
        return self.ptr


def alloc_pinned_memory(size):
    """cupy.cuda.alloc_pinned_memory: returns at least `size` bytes."""
    if size < 0:
        raise ValueError(size)
    rounded = 1 << max(9, (size - 1).bit_length())  # CuPy's pool rounds up to a power of two
    with LOCK:
        free = _free.setdefault(rounded, [])
        if free:
            pages = free.pop()
        else:
            pages = _Pages(rounded)
            i = bisect.bisect(_starts, pages.start)
            _starts.insert(i, pages.start)
            _pages.insert(i, pages)
    pages.bytes.fill(0xEE)
    lent = pages.bytes[:]  # a view of its own class: NumPy arrays over it keep it alive

    def back():
        pages.bytes.fill(0xEE)
        free.append(pages)

    weakref.finalize(lent, back).atexit = False
    return lent


def pages_at(pointer, size):
    """Returns the pinned pages that hold these bytes, or None."""
    i = bisect.bisect_right(_starts, pointer) - 1
    if i >= 0 and pointer + size <= _starts[i] + len(_pages[i].bytes):
        return _pages[i]


# ---- copies ----


class _Up:
    """An upload that may still run: the host must not change the bytes that it reads."""

    def __init__(self, pages, pointer, taken, where):
        self.pages, self.pointer, self.taken, self.where, self.over = (
            pages, pointer, taken, where, False)
        pages_up.append(self)

    def check(self):
        if not self.over:
            self.over = True
            pages_up.remove(self)
            if not np.array_equal(bytes_at(self.pointer, len(self.taken)), self.taken):
                raise Race(f"pinned memory was changed, or went back to its pool, while the copy "
                           f"at {self.where} from it to the device might have been running")


pages_up = []


def upload(x, pointer, size, queue):
    """Copies host memory to the device array x."""
    if not size:
        return
    with LOCK:
        n = queue.tick()
        queue.works(size)
        pages = pages_at(pointer, size)
        wrote(x, queue, n)
        target = x._a.reshape(-1).view(np.uint8)[:size]
        if pages is None:
            _count.uploads("copy_from_host_async")
            target[:] = bytes_at(pointer, size)
            return
        lo = pointer - pages.start
        touch(pages.log, lo, lo + size, False, queue, n, "pinned memory")
        taken = bytes_at(pointer, size).copy()
        for down in _down:  # earlier downloads without a wait
            down.overlay(pointer, taken, queue)
        target[:] = taken
        if not any(d.pointer < pointer + size and pointer < d.pointer + d.size for d in _down):
            _streams.later(queue, n, _Up(pages, pointer, taken, _count.where()).check)


_down = []


class _Down:
    def __init__(self, pointer, values, queue, n):
        self.pointer, self.values, self.size, self.queue, self.n = (
            pointer, values, len(values), queue, n)

    def overlay(self, pointer, into, queue):
        lo, hi = max(pointer, self.pointer), min(pointer + len(into), self.pointer + self.size)
        if lo < hi and queue.clock.get(self.queue.id, 0) >= self.n:
            into[lo - pointer:hi - pointer] = self.values[lo - self.pointer:hi - self.pointer]

    def arrive(self):
        _down.remove(self)
        bytes_at(self.pointer, self.size)[:] = self.values


def download(x, pointer, size, queue):
    """Copies the device array x to host memory."""
    if not size:
        return
    with LOCK:
        n = queue.tick()
        queue.works(size)
        read(x, queue, n)
        values = x._a.reshape(-1).view(np.uint8)[:size].copy()
        pages = pages_at(pointer, size)
        if pages is None:  # pageable memory: CUDA returns after the copy
            _count.waits("copy_to_host_async into pageable memory")
            bytes_at(pointer, size)[:] = values
            _streams.synchronize(queue)
            return
        lo = pointer - pages.start
        touch(pages.log, lo, lo + size, True, queue, n, "pinned memory")
        for up in list(pages_up):  # earlier uploads have read it
            if up.pointer < pointer + size and pointer < up.pointer + len(up.taken):
                up.check()
        down = _Down(pointer, values, queue, n)
        _down.append(down)
        bytes_at(pointer, size)[:] = 0xEE
        _streams.later(queue, n, down.arrive)


def span(x):
    """Returns (lo, hi), the smallest range of bytes in its block that holds x."""
    found = x._span
    if found is None:
        a = x._a
        if a.flags.forc:
            lo = a.__array_interface__["data"][0]
            found = lo, lo + a.nbytes
        else:
            found = np.lib.array_utils.byte_bounds(a)
        x._span = found
    return found


def read(x, queue, n):
    touch(x._block.log, *span(x), False, queue, n)


def wrote(x, queue, n):
    touch(x._block.log, *span(x), True, queue, n)


def on_stream(reads=(), writes=(), name=None):
    """Adds work to the current stream that reads and writes these device arrays."""
    with LOCK:
        queue = _streams.current_queue()
        n = queue.tick()
        for x in reads:
            read(x, queue, n)
        for x in writes:
            wrote(x, queue, n)
        queue.works(sum(x.nbytes for x in (*reads, *writes)), name)
