"""comm/fake_cupy.py as the module `cupy`, with as much arithmetic as a bucket of gradients needs.

Every task (a rank, or its background) has a current stream of its own, as a thread may have; all
work is late. So a task that reads what another computes, without waiting, reads 77s. Memory of
arrays that nobody holds is lent again, to the same stream, whatever other streams still do with
it: as CuPy's pool does."""

import contextlib
import math
import operator
import sys
import weakref

import greenlet
import numpy as np

from minidl.fused import pack
from minidl.parallel.data import flat
from tests.comm.transport import fake_cupy


def install(monkeypatch):
    """The module, which is `cupy` until the test is over. `packed`: of how many arrays each launch
    of pack.cu was (the kernel itself: tests/fused/test_on_gpu.py)."""
    cupy, streams, pool, pinned = fake_cupy.make(), {}, {}, {}

    class Stream(fake_cupy.Stream):
        def use(self):
            streams[greenlet.getcurrent()] = self

    def current():
        return streams.setdefault(greenlet.getcurrent(), Stream(cupy.trace))

    def empty(shape, dtype):
        """New memory of 77s, or what nobody holds any more; rubbish from then on."""
        stream, n_elems = current(), math.prod(np.broadcast_shapes(shape))
        free = pool.setdefault((stream, n_elems, np.dtype(dtype)), [])
        flat = free.pop() if free else np.full(n_elems, 77, dtype)

        def freed():
            stream.add(lambda: flat.view(np.uint8).fill(0xEE))
            free.append(flat)

        x = ndarray(flat.reshape(shape))
        weakref.finalize(x, freed).atexit = False
        return x

    def late(shape, dtype, work):
        """A new array that holds 77s until `work()` has run, which gives its elements."""
        x = empty(shape, dtype)
        current().add(lambda own=x.host: np.copyto(own, work()))
        return x

    def alloc_pinned_memory(n_bytes):
        """fake_cupy's, and lent again."""
        free = pinned.setdefault(n_bytes, [])
        pages = free.pop() if free else fake_cupy.alloc_pinned_memory(n_bytes)
        lent = pages[:]
        weakref.finalize(lent, lambda: (pages.fill(0xEE), free.append(pages))).atexit = False
        return lent

    class Device(contextlib.nullcontext):
        id = 0

        def __init__(self, number=0):
            super().__init__()

    class ndarray(fake_cupy.DeviceArray):
        __module__ = "cupy"
        current = property(lambda self: current())
        itemsize = property(lambda self: self.dtype.itemsize)
        base = None

        def __init__(self, host):
            super().__init__(host)
            self.device = Device()

        @property
        def __cuda_array_interface__(self):
            return {"data": (self.data.ptr, False)}

        def _part(self, host):
            x = type(self)(host)
            x.base = self if self.base is None else self.base
            return x

        def __getitem__(self, index):
            return self._part(self.host[index])

        def reshape(self, *shape):
            return self._part(self.host.reshape(*shape))

        def transpose(self, axes):
            return self._part(self.host.transpose(axes))

        # What is queued holds memory, and no array: that may be freed before, as on a GPU.

        def __setitem__(self, index, value):
            assert not isinstance(value, np.ndarray), "an implicit copy from the host"
            own, value = self.host, getattr(value, "host", value)
            self.current.add(lambda: operator.setitem(own, index, value))

        def _in_place(self, op, value):
            own, value = self.host, getattr(value, "host", value)
            self.current.add(lambda: op(own, value, out=own))
            return self

        def __iadd__(self, value):
            return self._in_place(np.add, value)

        def __imul__(self, value):
            return self._in_place(np.multiply, value)

        def __itruediv__(self, value):
            return self._in_place(np.divide, value)

        def astype(self, dtype, copy=True):
            own = self.host
            return late(self.shape, dtype, lambda: own.astype(dtype))

        def copy(self):
            return self.astype(self.dtype)

        def get(self):
            self.current.synchronize()
            return self.host.copy()

    def pack_many(arrays, buffer):
        cupy.packed.append(len(arrays))
        for view, x in zip(flat.views(buffer, [x.shape for x in arrays]), arrays, strict=True):
            view[...] = x

    def unpack_many(buffer, arrays):
        for view, x in zip(flat.views(buffer, [x.shape for x in arrays]), arrays, strict=True):
            x[...] = view

    monkeypatch.setattr(pack, "pack", pack_many)
    monkeypatch.setattr(pack, "unpack", unpack_many)
    cupy.packed = []
    cupy.ndarray = cupy.on_device = ndarray
    cupy.cuda.alloc_pinned_memory = alloc_pinned_memory
    cupy.cuda.Device, cupy.cuda.get_current_stream = Device, current
    cupy.cuda.Stream = lambda non_blocking: Stream(cupy.trace)
    cupy.cuda.is_available = lambda: False  # tasks have streams of their own already
    cupy.late = lambda values: late(values.shape, values.dtype, lambda: values)
    cupy.asarray = lambda x: x if isinstance(x, ndarray) else ndarray(np.array(x))
    cupy.ascontiguousarray = lambda x: x if x.flags.c_contiguous else x.copy()
    cupy.empty = empty
    cupy.zeros = lambda shape, dtype: late(shape, dtype, lambda: np.zeros(shape, dtype))
    cupy.ones = lambda shape, dtype: ndarray(np.ones(shape, dtype))
    cupy.may_share_memory = lambda a, b: np.may_share_memory(a.host, b.host)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy
