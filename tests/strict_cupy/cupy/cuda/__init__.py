"""cupy.cuda. As in CuPy, the name `nccl` appears only after `import cupy.cuda.nccl`."""

from types import SimpleNamespace as _SimpleNamespace

from cupy import _memory, _streams
from cupy._memory import (  # noqa: F401
    MemoryHook, MemoryPointer, PinnedMemoryPointer, alloc_pinned_memory,
)
from cupy._streams import Device, Event, Stream, get_current_stream, get_elapsed_time  # noqa: F401

_pool = _memory.Pool()
runtime = _SimpleNamespace(
    getDeviceCount=lambda: _streams.N_DEVICES, CUDARuntimeError=_streams.CUDARuntimeError,
    getDevice=_streams.current_device, setDevice=lambda device: Device(device).use(),
    deviceSynchronize=lambda: Device().synchronize(), runtimeGetVersion=lambda: 12090,
    getDeviceProperties=lambda device: {"name": b"stand-in", "multiProcessorCount": 1})


def is_available():
    return True


def get_device_id():
    return _streams.current_device()
