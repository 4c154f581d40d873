"""Copies between two memories wait for what they copy, and are there when they return.

Without a GPU: the stand-in of strict_cupy/, which raises Race where nothing puts a copy after the
work on what it copies, and whose copies arrive only where somebody waits for them."""

import ctypes

import numpy as np
import pytest

from minidl.cuda.host_memory import CopyStream, computed, pinned, to_device, to_host


def under_computation(cupy, values):
    """A device array on which the compute stream is at work."""
    return cupy.asarray(values) * 1


@pytest.mark.parametrize("n", [0, 1, 7, 1009])
@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("add", [False, True])
def test_down_comes_what_was_under_computation(n, dtype, add, strict_cupy):
    values = np.arange(n).astype(dtype)
    x = under_computation(strict_cupy, values)
    out = pinned(strict_cupy, n, dtype)
    out[...] = 3
    to_host(x, out, computed(x), add)
    np.testing.assert_array_equal(out, values + 3 if add else values)


@pytest.mark.parametrize("n", [0, 1, 7, 1009])
def test_up_goes_what_is_there_after_the_device_has_read_the_old(n, strict_cupy):
    values = np.arange(n).astype("f2")
    x = strict_cupy.asarray(np.full(n, 5, "f2"))
    seen = x + 1  # backward still reads the old weights
    host = pinned(strict_cupy, n, "f2")
    host[...] = values
    to_device(host, x, computed(x))
    np.testing.assert_array_equal(x.get(), values)
    np.testing.assert_array_equal(seen.get(), np.full(n, 6, "f2"))


def test_the_stand_in_sees_a_copy_that_does_not_wait_for_the_work(strict_cupy):
    """A negative control of the tests above: an event from before the work."""
    x = strict_cupy.asarray(np.zeros(7, "f4"))
    early, host = computed(x), pinned(strict_cupy, 7, "f4")
    x += 1
    with pytest.raises(strict_cupy.stand_in.Race, match=r"test_host_memory.*host_memory|host_mem"):
        to_host(x, host, early)
    with pytest.raises(strict_cupy.stand_in.Race):
        to_device(host, x, early)


def test_what_a_copy_stream_brings_is_there_when_somebody_has_waited(strict_cupy):
    x = under_computation(strict_cupy, np.arange(7, dtype="f4"))
    stream, host = CopyStream(x), pinned(strict_cupy, 7, "f4")
    copy = stream.copy(x, host)
    assert (host.view(np.uint8) == 0xEE).all(), "nobody has waited"
    copy.result()  # the compute stream waits, and no thread
    assert (host.view(np.uint8) == 0xEE).all()
    stream.stream.synchronize()
    np.testing.assert_array_equal(host, np.arange(7))


def test_pinned_memory_that_changes_under_a_copy_is_seen(strict_cupy):
    x, host = strict_cupy.zeros(7, "f4"), pinned(strict_cupy, 7, "f4")
    host[...] = 1
    x.data.copy_from_host_async(ctypes.c_void_p(host.ctypes.data), 28, None)
    host[...] = 2  # the copy may not have ended
    with pytest.raises(strict_cupy.stand_in.Race, match="pinned memory was changed"):
        x.get()


def test_two_numpy_memories_are_copied_plainly():
    x, out = np.arange(4.0), np.ones(4)
    to_host(x, out, computed(x), add=True)
    np.testing.assert_array_equal(out, x + 1)
    to_device(x, out, None)
    np.testing.assert_array_equal(out, x)
