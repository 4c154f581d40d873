"""A stand-in for CuPy in tests without a GPU: as much of it as comm/device.py and nccl.py call.

Its device memory is host memory, so copies and sums are real, but they are late: what is queued on
a stream happens only when somebody waits for it, in the stream's order. So a missing wait gives
wrong numbers, and so does a buffer that is used again too early. Pinned memory is filled with
rubbish when the pool gets it back.
"""

import contextlib
import ctypes
import itertools
import sys
import weakref
from types import SimpleNamespace

import numpy as np

from minidl.comm import naive, tree

_number = itertools.count()


def make(nccl_over=None):
    """A module like cupy, for one rank: its arrays, streams and pool are its own.

    module.on_device(host)   the NumPy array as a device array; `.host` is it again
    module.trace             what was queued and what happened: "queue down 0", "run down 0"
    nccl_over                a transport: then module.cuda.nccl is a NCCL whose ranks are its ranks
    """
    name = f"fake_cupy_{next(_number)}"
    trace = []
    current = Stream(trace)
    module = SimpleNamespace(trace=trace, current=current)
    module.ndarray = type("ndarray", (DeviceArray,), {"__module__": name, "current": current})
    module.on_device = module.ndarray
    module.empty = lambda n_elems, dtype: module.on_device(np.full(n_elems, 77, dtype))
    module.cuda = SimpleNamespace(
        Stream=lambda non_blocking: Stream(trace),
        get_current_stream=lambda: current,
        alloc_pinned_memory=alloc_pinned_memory,
        runtime=SimpleNamespace(getDevice=lambda: 0),
        nccl=None if nccl_over is None else make_nccl(nccl_over, current, trace),
    )
    sys.modules[name] = module  # where backend.library_of looks
    return module


class Stream:
    def __init__(self, trace):
        self.trace, self.queue, self.n_done, self.ptr = trace, [], 0, id(self)

    def add(self, work, name=None):
        self.queue.append((work, name))
        if name:
            self.trace.append(f"queue {name}")

    def run(self, end):
        while self.n_done < end:
            work, name = self.queue[self.n_done]
            self.queue[self.n_done] = None  # done: it holds nothing any more
            self.n_done += 1
            work()
            if name:
                self.trace.append(f"run {name}")

    def synchronize(self):
        self.run(len(self.queue))

    def record(self):
        return Event(self, len(self.queue))

    def wait_event(self, event):
        self.add(event.synchronize)


class Event:
    def __init__(self, stream, end):
        self.stream, self.end = stream, end

    def synchronize(self):
        self.stream.run(self.end)

    @property
    def done(self):
        return self.stream.n_done >= self.end


class DeviceArray:
    current = None  # set by `make`

    def __init__(self, host):
        self.host = host
        self.shape, self.dtype, self.size, self.ndim = host.shape, host.dtype, host.size, host.ndim
        self.nbytes, self.flags, self.strides = host.nbytes, host.flags, host.strides
        self.device = contextlib.nullcontext()

    @property
    def data(self):
        return SimpleNamespace(
            device_id=0,
            ptr=self.host.ctypes.data if self.nbytes else 0,  # an empty CuPy array has no memory
            copy_to_host_async=self._to_host,
            copy_from_host_async=self._from_host,
        )

    def _to_host(self, pointer, n_bytes, stream):
        assert isinstance(pointer, ctypes.c_void_p) and n_bytes == self.nbytes
        copy, own = ctypes.memmove, self.host.ctypes  # a stream holds memory here, but no array
        stream.add(lambda: copy(pointer, own.data, n_bytes), f"down {self._offset()}")

    def _from_host(self, pointer, n_bytes, stream):
        assert isinstance(pointer, ctypes.c_void_p) and n_bytes == self.nbytes
        copy, own = ctypes.memmove, self.host.ctypes
        stream.add(lambda: copy(own.data, pointer, n_bytes), f"up {self._offset()}")

    def _offset(self):
        """Bytes from the start of the array that this is a view of."""
        base = self.host if self.host.base is None else self.host.base
        return self.data.ptr - base.ctypes.data if self.nbytes else 0

    def __len__(self):
        return len(self.host)

    def __getitem__(self, index):
        return type(self)(self.host[index])

    def reshape(self, *shape):
        return type(self)(self.host.reshape(*shape))

    def __array_ufunc__(self, op, method, *inputs, out):
        """A kernel on the current stream."""
        assert method == "__call__"
        hosts = [a.host for a in inputs]
        self.current.add(lambda: op(*hosts, out=out[0].host))
        return out[0]

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")  # as CuPy says


class Pinned(np.ndarray):
    """Pinned memory of the pool, which gets it back when nobody holds it."""


def alloc_pinned_memory(n_bytes):
    # The pool rounds up: more than was asked for. A view of a plain array would not be what NumPy's
    # arrays over it hold.
    memory = np.full(n_bytes + 63, 0xEE, np.uint8).view(Pinned)
    lent = memory[:]
    weakref.finalize(lent, memory.fill, 0xEE)
    return lent


KINDS = {"FLOAT16": np.float16, "FLOAT32": np.float32, "FLOAT64": np.float64}
KINDS |= {"INT8": np.int8, "UINT8": np.uint8, "INT32": np.int32, "UINT32": np.uint32}
KINDS |= {"INT64": np.int64, "UINT64": np.uint64}
OPS = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}


def make_nccl(t, current, trace):
    """cupy.cuda.nccl for one rank; it talks on a duplicate of t. Its calls wait for the current
    stream, where the real ones queue on it; those of a group are made when it ends."""
    talk = t.subgroup(range(t.size))
    group = []  # None, then what the open group is to do

    def call(name, work):
        trace.append(name)
        if group:
            group.append(work)
        else:
            current.synchronize()
            work()

    def group_end():
        current.synchronize()
        for work in group[1:]:
            work()
        group.clear()

    class NcclCommunicator:
        def __init__(self, n_ranks, unique_id, rank):
            assert isinstance(unique_id, bytes) and unique_id == UNIQUE_ID
            assert (n_ranks, rank) == (t.size, t.rank)

        def allReduce(self, send, receive, count, kind, op, stream):
            assert stream == current.ptr

            def work():
                terms = memory(send, count, kind).copy()
                memory(receive, count, kind)[:] = naive.all_reduce(talk, terms, op)

            call("allReduce", work)

        def reduce(self, send, receive, count, kind, op, root, stream):
            assert stream == current.ptr

            def work():
                total = naive.all_reduce(talk, memory(send, count, kind).copy(), op)
                if t.rank == root:
                    memory(receive, count, kind)[:] = total

            call("reduce", work)

        def broadcast(self, send, receive, count, kind, root, stream):
            assert stream == current.ptr and send == receive
            call("broadcast", lambda: tree.broadcast(talk, memory(send, count, kind), root))

        def send(self, buffer, count, kind, peer, stream):
            assert stream == current.ptr and group, "alone it would wait for its receive"
            call("send", lambda: talk.send(memory(buffer, count, kind), peer))

        def recv(self, buffer, count, kind, peer, stream):
            assert stream == current.ptr and group
            call("recv", lambda: talk.recv(memory(buffer, count, kind), peer))

    return SimpleNamespace(
        available=True,
        get_unique_id=lambda: UNIQUE_ID,
        NcclCommunicator=NcclCommunicator,
        groupStart=lambda: group.append(None),
        groupEnd=group_end,
        **{f"NCCL_{name}": kind for name, kind in (KINDS | OPS).items()},
    )


UNIQUE_ID = bytes((37 * i) % 256 for i in range(128))  # since CuPy 14; all distinct


def memory(pointer, count, kind):
    n_bytes = count * np.dtype(kind).itemsize
    if not n_bytes:
        return np.empty(0, kind)
    return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(pointer), kind)
