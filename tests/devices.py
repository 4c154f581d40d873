"""Moves arrays to the device of a test's case, and back. `device` is the fixture of conftest.py.

    def test_something(device):
        x = minidl.tensor(put(np.ones(3), device), requires_grad=True)
        (x * x).sum().backward()
        np.testing.assert_array_equal(host(x.grad), [2, 2, 2])
"""

import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from minidl import backend
from minidl.backend import to_device
from minidl.comm.transport import staging
from minidl.comm.transport.protocol import Transport, Wrapper
from minidl.cuda import index_check


def put(x, device):
    """Returns the NumPy array x on the device. If x is a tuple or list, moves each array in it.
    Returns other values unchanged."""
    if isinstance(x, (tuple, list)):
        return type(x)(put(part, device) for part in x)
    return to_device(x, device) if isinstance(x, np.ndarray) else x


def host(x):
    """Returns a tensor, a NumPy array or a device array as a NumPy array. The result may be x
    itself."""
    x = backend.array_of(x)
    if isinstance(x, np.ndarray):
        return x
    with x.device:  # x's device may not be the current one
        return x.get()


class Direct(Wrapper):
    """A transport that sends device memory directly, as a CUDA-aware MPI does.

    On the stand-in, device memory is host memory, so any transport can read it. On a real GPU the
    simulated transport cannot read it, and the test is skipped."""

    cuda_aware = True

    def __init__(self, t):
        if not hasattr(backend.import_cupy(), "stand_in"):
            pytest.skip("only a CUDA-aware MPI can read a real GPU's memory")
        super().__init__(t)

    send, sendrecv = Transport.send, Transport.sendrecv  # Wrapper.send calls t.send

    def isend(self, array, dst, tag=0):
        isend = staging.isend if staging.on_device(array) else Wrapper.isend
        return isend(self, array, dst, tag)

    def irecv(self, into, src, tag=0):
        irecv = staging.irecv if staging.on_device(into) else Wrapper.irecv
        return irecv(self, into, src, tag)


@contextmanager
def stand_in():
    """Yields the module cupy of strict_cupy/. Inside the block `import cupy` finds it, even if
    there is a real CuPy. The fixture `strict_cupy` does the same."""
    def is_cupy(name):
        return name.partition(".")[0] in ("cupy", "cupyx") or name == "minidl.cuda.gpu"

    def taken():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if is_cupy(name)}

    if hasattr(sys.modules.get("cupy"), "stand_in"):  # as under `make test-gpu-sim`
        yield sys.modules["cupy"]
        return
    outside = taken()
    sys.modules.update(_inside)
    sys.path.insert(0, FOLDER)
    try:
        import cupy

        yield cupy
    finally:
        sys.path.remove(FOLDER)
        _inside.update(taken())
        sys.modules.update(outside)


def notes(cupy):
    """Returns and clears the bad indices that kernels noted on the stand-in's devices and that no
    error has reported."""
    found = []
    for device in range(cupy.stand_in.N_DEVICES):
        notes = index_check._notes(cupy, device)
        site, index = notes.device._a.tolist()  # needs no wait: the stand-in runs work at once
        if site:
            found.append((device, list(notes.texts)[site - 1].format(index)))
            notes.device._a[...] = 0
    return found


FOLDER = str(Path(__file__).parent / "strict_cupy")
_inside = {}  # keeps the stand-in's modules between two blocks, so that they load once
