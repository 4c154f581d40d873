"""minidl/ops/matmul.py: three rungs against np.matmul, in any order of threads; tiles save loads
by exactly their side."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import rows
from minidl.ops import matmul
from tests.kernel_arrays import counts_packs, normal


def reference(a, b):
    """What np.matmul says."""
    return a @ b


SHAPES = [(1, 1, 1), (16, 16, 16), (17, 15, 33), (64, 64, 16), (65, 3, 129), (5, 0, 4), (0, 2, 3)]
# k products of unit variance, each rounded; float16: the result is rounded to 2^-11 of up to 40
CLOSE = {"f4": dict(rtol=1e-5, atol=1e-5), "f2": dict(rtol=1e-3, atol=1e-3),
         "f8": dict(rtol=1e-12, atol=1e-12)}


@pytest.mark.parametrize("rung", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_every_rung_equals_numpy(dtype, rung):
    for m, k, n in SHAPES:
        a, b = normal((m, k), dtype, 1), normal((k, n), dtype, 2)
        c = matmul.by_kernel(a, b, rung)
        assert c.dtype == a.dtype
        want = reference(a.astype("f8"), b.astype("f8"))
        np.testing.assert_allclose(c, want, **CLOSE[dtype])


def test_tensor_cores_equal_numpy():
    """Tails in every direction; rows of 70 and 39 halves begin at no multiple of 16 bytes."""
    for m, k, n in SHAPES + [(130, 70, 39), (17, 33, 136), (3, 40, 129)]:
        a, b = normal((m, k), "f2", 1), normal((k, n), "f2", 2)
        want = reference(a.astype("f8"), b.astype("f8"))
        np.testing.assert_allclose(matmul.by_kernel(a, b, 4), want, **CLOSE["f2"])
    with pytest.raises(TypeError, match="tensor cores\\) wants float16; got float32"):
        matmul.by_kernel(a.astype("f4"), b.astype("f4"), 4)


def test_tensor_cores_take_arrays_that_begin_anywhere():
    a, b = (normal(33 * 40 + 1, "f2", i)[1:].reshape(s) for i, s in enumerate([(33, 40), (40, 33)]))
    want = reference(a.astype("f8"), b.astype("f8"))
    np.testing.assert_allclose(matmul.by_kernel(a, b, 4), want, **CLOSE["f2"])


@counts_packs
def test_tensor_cores_load_each_element_once_for_128():
    m, k, n = 130, 40, 8
    a, b, c = normal((m, k), "f2", 1), normal((k, n), "f2", 2), np.empty((m, n), "f2")
    report = cuda.check(matmul.FILE, (1, 2), 256, (c, a, b, m, n, k), name="matmul_v4",
                        outputs=["c"])
    assert not report.findings, str(report)
    assert report.ledger["a"].load_bytes == a.nbytes
    assert report.ledger["a"].loads == a.nbytes // 16  # eight halves at once
    assert report.ledger["b"].load_bytes == 2 * b.nbytes


@pytest.mark.parametrize("rung", [1, 2, 3])
def test_the_order_of_threads_and_blocks_changes_no_bit(rung):
    a, b = normal((70, 20), "f4", 1), normal((20, 66), "f4", 2)
    first = matmul.by_kernel(a, b, rung, form="fibre")
    for order in ("descending", 5):
        np.testing.assert_array_equal(first, matmul.by_kernel(a, b, rung, order=order))


@pytest.mark.parametrize("m, k, n", [(64, 32, 64), (33, 7, 65)])
@pytest.mark.parametrize("rung, reuse", [(1, 1), (2, 16), (3, 64)])
def test_each_element_is_loaded_once_for_each_tile_it_serves(rung, reuse, m, k, n):
    a, b = normal((m, k), "f4", 1), normal((k, n), "f4", 2)
    c, side = np.empty((m, n), "f4"), matmul.SIDES[rung]
    report = cuda.check(matmul.FILE, (rows.blocks(n, side), rows.blocks(m, side)), (16, 16),
                        (c, a, b, m, n, k), name=f"matmul_v{rung}", outputs=["c"])
    assert not report.findings, str(report)
    assert report.ledger["a"].loads == m * k * rows.blocks(n, reuse)
    assert report.ledger["b"].loads == k * n * rows.blocks(m, reuse)
    assert report.ledger["c"].stores == m * n


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"matmul: \(2, 3\) of float32 and \(2, 3\) of float32"):
        matmul.by_kernel(np.zeros((2, 3), "f4"), np.zeros((2, 3), "f4"))
