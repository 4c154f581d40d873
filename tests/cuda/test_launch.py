"""minidl/cuda/launch.py: chunks cover every element once; tables of addresses are checked."""

import numpy as np
import pytest

from minidl.cuda import launch
from minidl.cuda.launch import CHUNK, chunk_list, contiguous, on_device, pointers, same_sizes
from minidl.ops import dropout, gelu
from minidl.ops.add3 import add3, packs


@pytest.mark.parametrize(
    "sizes", [(), (0,), (1,), (CHUNK,), (CHUNK + 1, 0, 5), (3, 3 * CHUNK, CHUNK - 1)]
)
def test_chunks_cover_every_element_once(sizes):
    seen = [np.zeros(n, int) for n in sizes]
    for a, begin, end in chunk_list(sizes):
        assert 0 < end - begin <= CHUNK
        seen[a][begin:end] += 1
    assert all((s == 1).all() for s in seen)


def test_pointers_are_addresses_of_checked_arrays():
    arrays = [np.zeros(3, np.float32), np.zeros(5, np.float32)]
    assert pointers(np, arrays, np.float32, "x").tolist() == [a.ctypes.data for a in arrays]
    with pytest.raises(ValueError, match="x 1: want a contiguous array of float32; got float64"):
        pointers(np, [arrays[0], np.zeros(2)], np.float32, "x")
    with pytest.raises(ValueError, match="x 0: want a contiguous"):
        pointers(np, [np.zeros(6, np.float32)[::2]], np.float32, "x")


def test_arrays_of_a_table_that_is_written_must_be_writeable():
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="x 0: .* read-only"):
        pointers(np, [frozen], np.float32, "x", written=True)
    assert len(pointers(np, [frozen], np.float32, "x")) == 1


def test_lists_of_different_sizes_are_refused():
    a, b = np.zeros(3), np.zeros(4)
    assert same_sizes("op", [a, b], [a, b]) == [3, 4]
    with pytest.raises(ValueError, match=r"op: .*\[3, 4\] and of \[4, 3\]"):
        same_sizes("op", [a, b], [b, a])


def test_contiguous_keeps_zero_dimensions():
    x = np.zeros(())
    assert contiguous(np, x) is x
    assert contiguous(np, np.zeros((2, 3)).T).flags.c_contiguous


@pytest.mark.parametrize("size", [63, 64, 65, 640, 1001])
def test_more_elements_than_an_int_counts_go_in_pieces(size, monkeypatch, needs_compiler):
    x, p = np.random.default_rng(0).standard_normal((3, size), np.float32), 0.3
    state = 5, 7, 2**33

    def others():
        return (gelu.by_kernel(x[0]), gelu.by_kernel_backward(x[0], "none", x[1]),
                dropout.by_kernel(x[0], p, state))

    whole = add3(*x), *others()
    monkeypatch.setattr(launch, "LARGEST", 64)  # with 2^30 it would take 12 GB
    pieces = add3(*x), *others()
    for a, b in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [64, 65, 1001])
def test_packs_of_more_elements_than_an_int_counts_go_in_pieces(size, monkeypatch, needs_compiler):
    a, b, c = np.random.default_rng(0).standard_normal((3, size), np.float32)
    whole, pieces = np.empty_like(a), np.empty_like(a)
    packs(whole, a, b, c)
    monkeypatch.setattr(launch, "LARGEST", 64)
    packs(pieces, a, b, c)
    np.testing.assert_array_equal(pieces, a + b + c)
    np.testing.assert_array_equal(whole, pieces)


@pytest.mark.gpu
def test_tables_reach_a_gpu_once_and_through_pinned_memory():
    import cupy

    stand_in = pytest.importorskip("cupy.stand_in", reason="counted by the stand-in alone")
    with stand_in.counting() as count:
        tables = [on_device(cupy, np.arange(n)) for n in (0, 5, 7, 5)]
    assert not count.waits and not count.uploads and tables[1] is tables[3]
    for table, n in zip(tables, (0, 5, 7, 5), strict=True):
        np.testing.assert_array_equal(table.get(), np.arange(n))
    assert on_device(cupy, np.arange(5, dtype="i4")).dtype == np.int32
