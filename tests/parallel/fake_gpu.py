"""comm/fake_cupy.py as the module `cupy`, with as much arithmetic as a bucket of gradients needs.

Every task (a rank, or its background) has a current stream of its own, as a thread may have; all
work is late. So a task that reads what another computes, without waiting, reads 77s."""

import contextlib
import operator
import sys

import greenlet
import numpy as np

from minidl.fused import pack
from minidl.parallel import flat
from tests.comm import fake_cupy


def install(monkeypatch):
    """The module, which is `cupy` until the test is over. `packed`: of how many arrays each launch
    of pack.cu was (the kernel itself: tests/fused/test_on_gpu.py)."""
    cupy, streams = fake_cupy.make(), {}

    def current():
        return streams.setdefault(greenlet.getcurrent(), fake_cupy.Stream(cupy.trace))

    def late(host, work):
        """A new array that holds 77s until `work(host)` has run."""
        x = ndarray(np.full(host.shape, 77, host.dtype))
        current().add(lambda: np.copyto(x.host, work()))
        return x

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

        def __setitem__(self, index, value):
            assert not isinstance(value, np.ndarray), "an implicit copy from the host"
            self.current.add(lambda: operator.setitem(self.host, index,
                                                      getattr(value, "host", value)))

        def _in_place(self, op, value):
            self.current.add(lambda: op(self.host, getattr(value, "host", value), out=self.host))
            return self

        def __iadd__(self, value):
            return self._in_place(np.add, value)

        def __imul__(self, value):
            return self._in_place(np.multiply, value)

        def __itruediv__(self, value):
            return self._in_place(np.divide, value)

        def astype(self, dtype, copy=True):
            return late(self.host.astype(dtype), lambda: self.host.astype(dtype))

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
    cupy.cuda.Device, cupy.cuda.get_current_stream = Device, current
    cupy.late = lambda values: late(values, lambda: values)
    cupy.asarray = lambda x: x if isinstance(x, ndarray) else ndarray(np.array(x))
    cupy.empty = lambda shape, dtype: ndarray(np.full(shape, 77, dtype))
    cupy.zeros = lambda shape, dtype: late(np.zeros(shape, dtype), lambda: np.zeros(shape, dtype))
    cupy.ones = lambda shape, dtype: ndarray(np.ones(shape, dtype))
    cupy.may_share_memory = lambda a, b: np.may_share_memory(a.host, b.host)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy
