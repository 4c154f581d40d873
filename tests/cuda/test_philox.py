"""minidl/cuda/philox.py: a GPU draws the bits that the host draws."""

import numpy as np
import pytest

import minidl
from minidl import random
from minidl.cuda import dispatch
from tests.devices import host


def reference(state, n):
    """What a Generator in `state` draws on the host."""
    return random.host_bits(state, n)


SIZES = [0, 1, 7, 8, 9, 1001]


@pytest.mark.parametrize("state", [(0, 0, 0), (2**64 - 1, 2**63 + 5, 2**40), (3, 1, 2**32 - 2)])
@pytest.mark.parametrize("n", SIZES)
def test_the_kernel_draws_what_the_host_draws(n, state, needs_compiler):
    out = np.full(n + 3, 7, np.uint32)
    if n:
        kernel = dispatch.kernel("philox.cu", "philox_bits")
        kernel(-(-n // 8), 32, (out, n, -(-n // 8), *state))
    np.testing.assert_array_equal(out[:n], reference(state, n))
    assert (out[n:] == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_tensors_of_both_devices_have_the_same_numbers(n):
    for create in (minidl.rand, minidl.randn, lambda *n, **k: minidl.randint(-3, 9, n, **k),
                   minidl.randperm):
        ours, theirs = random.Generator(3, 5), random.Generator(3, 5)
        here, there = create(n, generator=ours), create(n, generator=theirs, device="cuda")
        assert there.device == "cuda:0" and there.dtype == here.dtype
        np.testing.assert_allclose(host(there), host(here), rtol=1e-7)  # randn: log, cos, sin
        if create is not minidl.randn:
            np.testing.assert_array_equal(host(there), host(here))
        assert ours.get_state() == theirs.get_state()


@pytest.mark.gpu
def test_nothing_is_uploaded():
    stand_in = pytest.importorskip("cupy.stand_in", reason="counted by the stand-in alone")
    with stand_in.counting() as count:
        minidl.randn(1000, device="cuda")
        minidl.nn.functional.dropout(minidl.ones(9, device="cuda", dtype="float64"), 0.5)
    assert not count.waits, count
    assert sum(count.uploads.values()) <= 1, count  # minidl.ones
