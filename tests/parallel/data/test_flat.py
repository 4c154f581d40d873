"""Flat buffers hold every element once, in order, whatever the shapes."""

import numpy as np
import pytest

import minidl
from minidl.comm import chunks
from minidl.parallel.data import flat

SHAPES = [(2, 3), (), (0, 4), (5,), (1, 1, 2)]


def arrays_of(dtype):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in SHAPES]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("wide", ["f4", "f8"])
def test_flatten_and_unflatten_are_inverse(kernels, dtype, wide):
    arrays = [np.asarray(a) for a in arrays_of(dtype)]
    with minidl.use_fused(kernels):
        buffer = flat.flatten(arrays, np.dtype(wide))
        assert buffer.shape == (14,) and buffer.dtype == wide
        want = np.concatenate([a.reshape(-1) for a in arrays]).astype(wide)
        np.testing.assert_array_equal(buffer, want)
        copies = [np.zeros_like(a) for a in arrays]
        flat.unflatten(buffer, copies)
    for a, b in zip(arrays, copies):
        np.testing.assert_array_equal(a.astype(wide).astype(dtype), b)


@pytest.mark.parametrize("dtype, launches", [("f2", 1), ("f4", 0)])
def test_on_the_cpu_one_launch_casts_all_and_a_plain_copy_does_not(dtype, launches, monkeypatch,
                                                                   needs_compiler):
    seen = []
    monkeypatch.setattr(flat, "pack", lambda arrays, flat: seen.append(len(arrays)))
    flat.flatten(arrays_of(dtype), np.dtype("f4"))
    assert seen == [len(SHAPES)] * launches


def test_views_share_memory_and_cover_the_buffer_once():
    buffer = np.zeros(14)
    for i, view in enumerate(flat.views(buffer, SHAPES)):
        view += i + 1
    assert buffer.tolist() == [1] * 6 + [2] + [4] * 5 + [5] * 2


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5, 8, 20])
def test_the_parts_of_a_buffer_hold_every_element_once(n_ranks):
    buffer = np.arange(14)
    slots = flat.views(buffer, SHAPES)
    bounds = chunks.bounds(14, n_ranks)
    for low, high in zip(bounds, bounds[1:]):
        part = np.full(high - low, -1)
        for slot, (offset, first, end) in zip(slots, flat.within(SHAPES, low, high), strict=True):
            part[offset:offset + end - first] = slot.reshape(-1)[first:end]
        np.testing.assert_array_equal(part, buffer[low:high])
