"""Copies between the memories of device and host; plain ones where both are NumPy's.

    compute stream   | backward of b | event | backward of a ...
    copy stream                      | wait for the event, copy b to pinned host memory
    a thread waits for the copy stream, not the device

A GPU copies beside its computing only from and to pinned pages, which the system may not move; and
on a stream of its own, which must wait until what it copies has been computed, or what it
overwrites has been read.

Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
Test: tests/parallel/test_host_memory.py (late copies without a GPU)
"""

import ctypes
from contextlib import contextmanager

import numpy as np

from minidl.comm.device import library_of


def pinned(xp, n_elems, dtype):
    """An uninitialised 1-d host array; for a GPU in pages that stay, which copies need to run
    beside other work."""
    if xp is np:
        return np.empty(n_elems, dtype)
    memory = xp.cuda.alloc_pinned_memory(max(1, n_elems) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, max(1, n_elems))[:n_elems]


def computed(x):
    """What a copy must wait for: the work now on the stream, for a GPU array."""
    return None if isinstance(x, np.ndarray) else library_of(x).cuda.get_current_stream().record()


@contextmanager
def after(event, x):
    """What is done with x inside comes after `event` on its device, and has ended on return: for a
    thread beside the one that computes x."""
    if event is None:
        yield
        return
    with x.device:
        stream = library_of(x).cuda.get_current_stream()  # this thread's
        stream.wait_event(event)
        yield
        stream.synchronize()


def to_host(x, out, event, add=False):
    """out = x, or out += x, from the device's memory to the host's; x: contiguous."""
    if not isinstance(x, np.ndarray):
        library = library_of(x)
        host = pinned(library, x.size, x.dtype).reshape(x.shape) if add else out
        with x.device:
            stream = library.cuda.Stream(non_blocking=True)
            stream.wait_event(event)
            x.data.copy_to_host_async(ctypes.c_void_p(host.ctypes.data), x.nbytes, stream)
            stream.synchronize()
        x = host
    if add:
        out += x
    elif x is not out:
        out[...] = x


def to_device(x, out, event):
    """out = x, from the host's memory to the device's."""
    if isinstance(out, np.ndarray):
        out[...] = x
        return
    if not out.flags.c_contiguous:
        raise ValueError(f"a weight of shape {out.shape} and strides {out.strides} is written as "
                         "bytes: make it contiguous before it is offloaded")
    with out.device:
        stream = library_of(out).cuda.Stream(non_blocking=True)
        stream.wait_event(event)
        out.data.copy_from_host_async(ctypes.c_void_p(x.ctypes.data), x.nbytes, stream)
        stream.synchronize()
