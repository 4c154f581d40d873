"""minidl/cuda/unscale_check.py."""

import numpy as np
import pytest

from minidl.cuda import dispatch
from minidl.cuda import unscale_check as fused
from minidl.cuda.launch import CHUNK, chunk_list, pointers
from minidl.optim import adam
from tests.kernel_arrays import SIZES, normal


def reference(g, inverse):
    """(g * inverse, how many elements of it are not finite)."""
    scaled = g * g.dtype.type(inverse)
    return scaled, int((~np.isfinite(scaled)).sum())


LENGTHS = [*SIZES, CHUNK - 1, 2 * CHUNK + 3]


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_unscales_every_array(dtype):
    grads = [normal(n, dtype, n) for n in LENGTHS]
    inverse = (
        0.125 if dtype == "f2" else 0.3
    )  # half computes in float: only a power of two is exact
    expected = [reference(g, inverse)[0] for g in grads]
    assert fused.unscale_check(grads, inverse) == 0
    for g, e in zip(grads, expected):
        np.testing.assert_array_equal(g, e)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize(
    "array, at", [(1, 0), (4, 256), (5, 4098), (-1, CHUNK), (-1, 2 * CHUNK + 2)]
)
def test_one_bad_element_anywhere_is_found(array, at, dtype, value):
    grads = [normal(n, dtype, n) for n in LENGTHS]
    grads[array][at] = value
    assert fused.count_bad(grads) == 1
    assert fused.unscale_check(grads, 0.5) == 1


def test_a_product_that_overflows_is_bad_and_the_largest_number_is_not():
    g = np.array([65504, -65504, 1, 6e-8], np.float16)
    assert fused.count_bad([g]) == 0
    assert fused.unscale_check([g], 2.0) == 2
    assert fused.unscale_check([np.full(5, np.finfo("f4").max)], 1.0) == 0


def test_dtypes_may_be_mixed_and_lists_empty():
    assert fused.count_bad([np.array([np.inf, 1], np.float32), np.array([np.nan], np.float16)]) == 2
    assert fused.count_bad([]) == fused.unscale_check([np.zeros(0, np.float32)], 1.0) == 0


def test_the_rungs_for_a_gpu_give_the_same():
    grads = [normal(n, "f4", n) for n in (300, 70)]
    grads[0][[3, 299]] = np.inf, np.nan
    expected = [reference(g, 0.5)[0] for g in grads]
    chunks = chunk_list((300, 70))
    bad = np.full((2, 2), -1, np.int32)
    table = pointers(np, grads, np.float32, "")
    dispatch.kernel(fused.FILE, "count_bad_many", "f4")(2, 64, (bad[0], table, chunks, 2))
    args = bad[1], table, 0.5, None, chunks, 2
    dispatch.kernel(fused.FILE, "unscale_check_many", "f4")(2, 64, args)
    np.testing.assert_array_equal(bad, [[2, 0], [2, 0]])
    for g, e in zip(grads, expected):
        np.testing.assert_array_equal(g, e)


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_its_answer_is_the_optimizers_skip(value):
    w, g = np.ones(400, np.float32), np.ones(400, np.float32)
    g[-1] = value
    m, v = np.zeros_like(w), np.zeros_like(w)
    adam.by_kernel([w], [g], [m], [v], [1], skip=fused.count_bad([g]))
    assert (w == 1).all() == np.isnan(value)
    assert np.isfinite(w).all() and np.isfinite(m).all()
