"""minidl/ops/softmax.py: five rungs forward and backward, in any order of threads, against the
formula in float64; the op with and without them."""

import numpy as np
import pytest

from minidl.nn import functional as F
from minidl.ops import softmax
from tests.kernel_arrays import backward, normal, tensors, with_and_without

# (rows, cols)
SHAPES = [(1, 1), (3, 7), (5, 255), (7, 256), (9, 257), (70, 33), (2, 72), (1, 1009)]
# float32: exp and the sum are good to a few units in the last place; float16: one rounding, 2^-11,
# and below 6e-5 its numbers are 6e-8 apart
CLOSE = {"f4": dict(rtol=3e-6, atol=1e-7), "f2": dict(rtol=1e-3, atol=1e-7),
         "f8": dict(rtol=1e-12, atol=1e-14)}
ORDERS = [{"form": "fibre"}, {"order": "descending"}, {"order": 11}]  # 11: a shuffle


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_every_rung_equals_the_formula(dtype, rung, log):
    for shape in SHAPES:
        x, gy = 4 * normal(shape, dtype, 1), normal(shape, dtype, 2)
        y = softmax.by_kernel(x, -1, log, rung=rung)
        # log: m and log(sum) are subtracted from numbers up to 20
        close = CLOSE[dtype] | ({"atol": 20 * CLOSE["f4"]["atol"]} if log and dtype != "f8" else {})
        np.testing.assert_allclose(y, softmax.by_numpy(x.astype("f8"), -1, log), **close)
        gx = softmax.by_kernel_backward(gy, y, -1, log, rung=rung)
        want = softmax.by_numpy_backward(gy.astype("f8"), y.astype("f8"), -1, log)
        sums = np.abs(gy.astype("f8")).sum() / len(gy)  # what was added up, and may cancel
        np.testing.assert_allclose(gx, want, close["rtol"], close["atol"] * max(1, sums))
        assert y.dtype == gx.dtype == np.dtype(dtype)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cols", [1, 5, 33, 300])
def test_the_gradient_where_scores_were_masked(cols, rung, log):
    """Minus infinity above the diagonal, as attention masks: probability 0, and no gradient."""
    x, gy = 3 * normal((33, cols), "f4", 1), normal((33, cols), "f4", 2)
    hidden = np.arange(cols) > np.arange(33)[:, None]
    x[hidden], gy[hidden] = -np.inf, 0
    y = softmax.by_kernel(x, -1, log, rung)
    want = softmax.by_numpy(x.astype("f8"), -1, log)
    np.testing.assert_allclose(y, want, rtol=3e-6, atol=2e-6 if log else 1e-7)
    assert (y[hidden] == (-np.inf if log else 0)).all()
    gx = softmax.by_kernel_backward(gy, y, -1, log, rung)
    assert (gx[hidden] == 0).all()
    want = softmax.by_numpy_backward(gy.astype("f8"), y.astype("f8"), -1, log)
    np.testing.assert_allclose(gx, want, rtol=3e-6, atol=2e-6)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_the_order_of_threads_and_blocks_changes_no_bit(rung, log):
    x, gy = normal((37, 77), "f4", 1), normal((37, 77), "f4", 2)
    results = []
    for ways in ORDERS:
        y = softmax.by_kernel(x, -1, log, rung, **ways)
        results.append((y, softmax.by_kernel_backward(gy, y, -1, log, rung, **ways)))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0][0], other[0])
        np.testing.assert_array_equal(results[0][1], other[1])


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_large_scores_and_infinities(rung, log):
    inf, nan = np.inf, np.nan
    x = np.array([[1e4, 1e4, -1e4, 0], [-inf, -inf, 2, 2], [-inf] * 4, [0, nan, 0, 0],
                  [3e38, -3e38, 3e38, 0], [-inf, 5, -inf, -inf], [-1e4] * 4], np.float32)
    with np.errstate(all="ignore"):  # -inf minus -inf: a row that sees nothing is nan
        want = softmax.by_numpy(x.astype("f8"), -1, log).astype("f4")  # -6e38 is -inf
    np.testing.assert_allclose(softmax.by_kernel(x, -1, log, rung=rung), want, rtol=1e-6)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_the_maximum_is_found_wherever_it_is(rung, log):
    at = np.array([0, 1, 31, 32, 255, 256, 298, 299])
    x = np.zeros((8, 300), np.float32)
    x[np.arange(8), at] = 1e4  # any other shift would overflow
    y = softmax.by_kernel(x, -1, log, rung=rung)
    np.testing.assert_array_equal(y[np.arange(8), at], 0 if log else 1)
    assert (y.sum(1) == (-299e4 if log else 1)).all()


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", [(4, 9, 33), (0, 8), (5,), (2, 3, 1, 1)])
def test_the_ops_equal_the_ops_without_kernels(shape, dtype):
    x, gy = normal(shape, dtype, 1), normal(shape, dtype, 2)
    for op in (F.softmax, F.log_softmax):
        (y, (gx,)), (plain_y, (plain_gx,)) = with_and_without(op, [x], gy, dim=-1)
        assert y.dtype == plain_y.dtype and y.shape == plain_y.shape
        # both round y, and from there gx
        np.testing.assert_allclose(y, plain_y, rtol=2 * CLOSE[dtype]["rtol"], atol=1e-6)
        np.testing.assert_allclose(gx, plain_gx, 4 * CLOSE[dtype]["rtol"],
                                   1e-2 if dtype == "f2" else 3e-6)


def test_rows_without_columns():
    y, (gx,) = backward(F.log_softmax, [np.zeros((3, 0), "f4")], np.zeros((3, 0), "f4"), dim=1)
    assert y.shape == gx.shape == (3, 0)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
def test_gradients_are_central_differences(log):
    x, gy, step = normal((4, 5), "f8", 1), normal((4, 5), "f8", 2), 1e-6
    want = np.empty_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        change = softmax.by_kernel(up, -1, log) - softmax.by_kernel(down, -1, log)
        want[i] = (gy * change).sum() / (2 * step)
    got = softmax.by_kernel_backward(gy, softmax.by_kernel(x, -1, log), -1, log)
    np.testing.assert_allclose(got, want, rtol=1e-7,
                               atol=1e-9)


def test_views_give_what_their_copies_give():
    x, g = normal((8, 12), "f4", 1), normal((8, 12), "f4", 2).T
    for op in (F.softmax, F.log_softmax):
        y, (gx,) = backward(op, [x.T], g, dim=-1)
        copy_y, (copy_gx,) = backward(op, [x.T.copy()], g.copy(), dim=-1)
        np.testing.assert_array_equal(y, copy_y)
        np.testing.assert_array_equal(gx, copy_gx)


def test_y_alone_is_saved():
    (x,) = tensors(normal((4, 5), "f4", 1), requires_grad=True)
    y = F.softmax(x, -1)
    assert [s is y.array for s in y.grad_fn.saved] == [True]


@pytest.mark.parametrize("dim, dtype, runs", [(-1, None, True), (1, None, True), (0, None, False),
                                              (-1, "f2", True), (-1, "f8", False)])
def test_the_kernel_runs_over_the_last_dimension_alone(dim, dtype, runs, monkeypatch):
    """And decides by the dtype after the cast."""
    x, gy = normal((4, 6), "f4", 1), normal((4, 6), "f4", 2)
    ran, forward = [], softmax.by_kernel
    monkeypatch.setattr(softmax, "by_kernel", lambda *args: ran.append(1) or forward(*args))
    options = dict(dim=dim, dtype=None if dtype is None else np.dtype(dtype))
    (y, (gx,)), (plain_y, (plain_gx,)) = with_and_without(F.softmax, [x], gy, **options)
    assert bool(ran) is runs and y.dtype == plain_y.dtype
    np.testing.assert_allclose(y, plain_y, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(gx, plain_gx, rtol=4e-3, atol=2e-3 if dtype == "f2" else 3e-6)


def test_a_number_and_a_dimension_that_is_not_there():
    (scalar,), (x,) = tensors(np.float32(1)), tensors(normal((4, 6), "f4", 1))
    assert F.softmax(scalar, -1).array == 1
    with pytest.raises(IndexError, match="softmax: "):
        F.softmax(x, 2)
