"""minidl/ops/embedding.py: every row of gy arrives at its row of the table, once."""

import numpy as np
import pytest

from minidl import cuda
from minidl.cuda import dispatch
from minidl.nn import functional as F
from minidl.ops import embedding
from tests.kernel_arrays import normal, with_and_without


def reference(index, gy, n_rows):
    out = np.zeros((n_rows, gy.shape[1]), np.float64)
    np.add.at(out, index, gy.astype(np.float64))
    return out


CASES = [
    (0, 5, 3),
    (1, 1, 1),
    (300, 7, 33),
    (257, 50, 16),
    (64, 1000, 17),
    (1000, 2, 255),
]  # n, vocabulary, width


def case(n, vocabulary, width, dtype):
    index = np.random.default_rng(n).integers(0, vocabulary, n)
    return index, normal((n, width), dtype, 1)


@pytest.mark.parametrize("dtype, rtol", [("f4", 1e-6), ("f2", 1e-6), ("f8", 1e-14)])
@pytest.mark.parametrize("n, vocabulary, width", CASES)
def test_sums_the_rows_that_meet(n, vocabulary, width, dtype, rtol):
    index, gy = case(n, vocabulary, width, dtype)
    out = embedding.by_kernel(index, gy, vocabulary)
    # up to 500 numbers near 1 meet in float32: as many roundings of a sum below 60
    np.testing.assert_allclose(
        out, reference(index, gy, vocabulary), rtol=rtol, atol=rtol * 50
    )


@pytest.mark.parametrize("name", ["embedding_grad_atomic", "embedding_grad_owners",
                                  "embedding_grad_packs"])
@pytest.mark.parametrize("n, vocabulary, width", [*CASES[1:], (40, 5, 72)])
def test_the_other_rungs_give_the_same(n, vocabulary, width, name):
    index, gy = case(n, vocabulary, width, "f4")
    gy = np.round(gy * 16)  # integers: exact in any order
    out = np.zeros((vocabulary, width), np.float32)
    if name == "embedding_grad_atomic":
        args = (out, gy, index, n, width)
    else:
        first = np.full(vocabulary, n, np.int32)
        dispatch.kernel(embedding.FILE, "embedding_grad_first")(-(-n // 64), 64, (first, index, n))
        assert first.tolist() == [int(np.argmax(index == v)) if v in index else n
                                  for v in range(vocabulary)]
        args = (out, gy, index, first, n, width)
    dispatch.kernel(embedding.FILE, name, "f4", ACC="float")((-(-width // 64), 5), 64, args)
    np.testing.assert_array_equal(out, reference(index, gy, vocabulary))


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_the_op_equals_the_op_without_kernels(dtype, padding_idx):
    index = np.random.default_rng(3).integers(0, 6, (4, 5), dtype=np.int32)
    w, g = normal((6, 8), dtype, 1), normal((4, 5, 8), dtype, 2)
    (y, (gw,)), (plain_y, (plain_gw,)) = with_and_without(
        lambda w: F.embedding(index, w, padding_idx), [w], g)
    np.testing.assert_array_equal(y, plain_y)
    assert gw.dtype == plain_gw.dtype == np.dtype(dtype)
    # sums of the same numbers in fp32 in the same order, but reduceat may group them otherwise
    np.testing.assert_allclose(gw, plain_gw, rtol={"f4": 1e-6, "f2": 1e-3}[dtype], atol=1e-6)


def test_the_number_of_threads_does_not_change_the_bits():
    n, vocabulary, width = 3000, 37, 64  # enough work to be cut into parts
    index, gy = case(n, vocabulary, width, "f4")
    before, results = cuda.n_threads(), []
    for threads in (1, 2, 3):
        cuda.set_threads(threads)
        assert embedding.n_parts(gy.size) == (1 if threads == 1 else 4 * threads)
        results.append(embedding.by_kernel(index, gy, vocabulary))
    cuda.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_allclose(results[0], reference(index, gy, vocabulary), rtol=1e-4)


def test_the_order_of_additions_is_that_of_the_positions():
    # 1e8 + 1 - 1e8 is 0 in float32, 1e8 - 1e8 + 1 is 1
    gy = np.array([[1e8], [1], [-1e8]], np.float32)
    assert embedding.by_kernel(np.array([0, 0, 0]), gy, 1) == 0
    assert embedding.by_kernel(np.array([0, 0, 0]), gy[[0, 2, 1]], 1) == 1


def test_views_are_read_in_their_own_order():
    index, gy = np.array([0, 9, 1, 9, 0, 9])[::2], normal((5, 3), "f4", 1).T
    np.testing.assert_allclose(
        embedding.by_kernel(index, gy, 2), reference(index, gy, 2), rtol=1e-6
    )
