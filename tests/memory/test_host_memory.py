"""Copies between two memories wait for what they copy, and are there when they return.

Without a GPU: fake_cupy.py, whose streams do their work only when somebody waits for them."""

import numpy as np
import pytest

from minidl.memory.host_memory import computed, pinned, to_device, to_host
from tests.comm.transport import fake_cupy


def under_computation(cupy, values):
    """A device array that holds 77s until the work on the compute stream is waited for."""
    x = cupy.on_device(np.full_like(values, 77))
    cupy.current.add(lambda: np.copyto(x.host, values))
    return x


@pytest.mark.parametrize("n", [0, 1, 7, 1009])
@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("add", [False, True])
def test_down_comes_what_was_under_computation(n, dtype, add):
    cupy, values = fake_cupy.make(), np.arange(n).astype(dtype)
    x = under_computation(cupy, values)
    out = pinned(cupy, n, dtype)
    out[...] = 3
    to_host(x, out, computed(x), add)
    np.testing.assert_array_equal(out, values + 3 if add else values)


@pytest.mark.parametrize("n", [0, 1, 7, 1009])
def test_up_goes_what_is_there_after_the_device_has_read_the_old(n):
    cupy, values = fake_cupy.make(), np.arange(n).astype("f2")
    x = cupy.on_device(np.full(n, 5, "f2"))
    seen = np.zeros(n, "f2")
    cupy.current.add(lambda: np.copyto(seen, x.host))  # backward still reads the old weights
    host = pinned(cupy, n, "f2")
    host[...] = values
    to_device(host, x, computed(x))
    np.testing.assert_array_equal(x.host, values)
    np.testing.assert_array_equal(seen, np.full(n, 5, "f2"))


def test_two_numpy_memories_are_copied_plainly():
    x, out = np.arange(4.0), np.ones(4)
    to_host(x, out, computed(x), add=True)
    np.testing.assert_array_equal(out, x + 1)
    to_device(x, out, None)
    np.testing.assert_array_equal(out, x)
