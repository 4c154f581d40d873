"""Packing by one launch (minidl/parallel/data/flat.py)."""

import numpy as np
import pytest

from minidl.cuda import dispatch
from minidl.cuda.launch import CHUNK, chunk_list, pointers
from minidl.parallel.data.flat import pack, unpack
from tests.kernel_arrays import SIZES, normal


def reference(arrays, dtype):
    return np.concatenate([a.reshape(-1) for a in arrays]).astype(dtype)


SHAPES = [*SIZES, (3, 5), (), (2 * CHUNK + 1,)]


@pytest.mark.parametrize("wide", ["f4", "f2", "f8"])
@pytest.mark.parametrize("narrow", ["f4", "f2", "f8"])
def test_every_element_goes_to_its_place_and_back(narrow, wide):
    arrays = [normal(s, narrow, i) for i, s in enumerate(SHAPES)]
    flat = np.full(sum(a.size for a in arrays), np.nan, wide)
    pack(arrays, flat)
    np.testing.assert_array_equal(flat, reference(arrays, wide))  # one rounding, the same
    back = [np.full(a.shape, np.nan, narrow) for a in arrays]
    unpack(flat, back)
    for a, b in zip(arrays, back):
        np.testing.assert_array_equal(b, a.astype(wide).astype(narrow))


def test_the_rungs_for_a_gpu_give_the_same():
    arrays = [normal(n, "f2", n) for n in (5, 300, 1)]
    flat, first = np.zeros(306, np.float32), np.array([0, 5, 305])
    chunks, table = chunk_list((5, 300, 1)), pointers(np, arrays, np.float16, "")
    dispatch.kernel("pack.cu", "pack_many", "f2", U="float")(3, 32, (flat, table, first, chunks, 3))
    np.testing.assert_array_equal(flat, reference(arrays, "f4"))
    flat *= 2
    doubled = [2 * a for a in arrays]
    dispatch.kernel("pack.cu", "unpack_many", "f2", U="float")(
        3, 32, (table, flat, first, chunks, 3)
    )
    for a, d in zip(arrays, doubled):
        np.testing.assert_array_equal(a, d)


def test_views_are_packed_in_their_own_order_but_cannot_be_unpacked_into():
    x = normal((3, 4), "f4", 1)
    flat = np.empty(12, np.float32)
    pack([x.T], flat)
    np.testing.assert_array_equal(flat, x.T.reshape(-1))
    with pytest.raises(ValueError, match="unpack: array 0: want a contiguous array"):
        unpack(flat, [x.T])


def test_a_buffer_of_another_size_is_refused():
    with pytest.raises(
        ValueError, match=r"pack: want a flat buffer of 5 elements; got shape \(6,\)"
    ):
        pack([np.zeros(5, np.float32)], np.zeros(6, np.float32))
    pack([], np.zeros(0, np.float32))
    unpack(np.zeros(0, np.float32), [])
