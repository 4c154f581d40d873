"""minidl/fused/softmax.py: three rungs forward and backward, in any order of threads, against the
formula in float64 and the plain op; scale and causal mask."""

import numpy as np
import pytest

from minidl.fused import softmax as fused
from minidl.gradcheck import gradcheck
from minidl.ops import softmax as plain
from tests.fused.common import backward, normal, tensors

SHAPES = [(1, 1), (3, 7), (5, 255), (7, 256), (9, 257), (70, 33), (1, 1009)]  # (rows, cols)
# float32: exp and the sum are good to a few units in the last place; float16: one rounding, 2^-11,
# and below 6e-5 its numbers are 6e-8 apart
CLOSE = {"f4": dict(rtol=3e-6, atol=1e-7), "f2": dict(rtol=1e-3, atol=1e-7),
         "f8": dict(rtol=1e-12, atol=1e-14)}
ORDERS = [{"form": "fibre"}, {"order": "descending"}, {"order": 11}]  # 11: a shuffle


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_every_rung_equals_the_formula(dtype, rung, log):
    for shape in SHAPES:
        x, gy = 4 * normal(shape, dtype, 1), normal(shape, dtype, 2)
        y = fused.forward(x, log, rung=rung)
        # log: m and log(sum) are subtracted from numbers up to 20
        close = CLOSE[dtype] | ({"atol": 20 * CLOSE["f4"]["atol"]} if log and dtype != "f8" else {})
        np.testing.assert_allclose(y, fused.reference(x.astype("f8"), log), **close)
        gx = fused.backward(gy, y, log, rung=rung)
        want = fused.reference_backward(gy.astype("f8"), y.astype("f8"), log)
        sums = np.abs(gy.astype("f8")).sum() / len(gy)  # what was added up, and may cancel
        np.testing.assert_allclose(gx, want, close["rtol"], close["atol"] * max(1, sums))
        assert y.dtype == gx.dtype == np.dtype(dtype)


@pytest.mark.parametrize("rung", [1, 2, 3])
@pytest.mark.parametrize("queries, cols", [(5, 40), (40, 5), (33, 33)])
def test_what_a_causal_logarithm_hides_is_minus_infinity(queries, cols, rung):
    x = 3 * normal((2 * queries, cols), "f4", 1)
    y = fused.forward(x, True, 0.25, queries, rung)
    want = fused.reference(x.astype("f8"), True, 0.25, queries)
    assert np.isneginf(want).any()
    np.testing.assert_allclose(y, want, rtol=3e-6, atol=1e-6)  # m and log(sum) are up to 5


@pytest.mark.parametrize("rung", [1, 2, 3])
@pytest.mark.parametrize("queries, cols", [(1, 1), (7, 7), (5, 40), (40, 5), (33, 33), (257, 300)])
def test_scale_and_causal_mask(queries, cols, rung):
    shape = 2 * queries, cols  # two heads
    x, gy = 3 * normal(shape, "f4", 1), normal(shape, "f4", 2)
    y = fused.forward(x, False, 0.25, queries, rung)
    want = fused.reference(x.astype("f8"), False, 0.25, queries)
    np.testing.assert_allclose(y, want, **CLOSE["f4"])
    assert (y[want == 0] == 0).all()
    gx = fused.backward(gy, y, False, 0.25, rung)
    want = fused.reference_backward(gy.astype("f8"), y.astype("f8"), False, 0.25)
    np.testing.assert_allclose(gx, want, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3])
def test_the_order_of_threads_and_blocks_changes_no_bit(rung, log):
    x, gy = normal((37, 77), "f4", 1), normal((37, 77), "f4", 2)
    results = []
    for ways in ORDERS:
        y = fused.forward(x, log, 0.5, 10, rung, **ways)
        results.append((y, fused.backward(gy, y, log, 0.5, rung, **ways)))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0][0], other[0])
        np.testing.assert_array_equal(results[0][1], other[1])


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3])
def test_large_scores_and_infinities(rung, log):
    inf, nan = np.inf, np.nan
    x = np.array([[1e4, 1e4, -1e4, 0], [-inf, -inf, 2, 2], [-inf] * 4, [0, nan, 0, 0],
                  [3e38, -3e38, 3e38, 0], [-inf, 5, -inf, -inf], [-1e4] * 4], np.float32)
    with np.errstate(all="ignore"):  # -inf minus -inf: a row that sees nothing is nan
        want = fused.reference(x.astype("f8"), log).astype("f4")  # -6e38 is -inf
    np.testing.assert_allclose(fused.forward(x, log, rung=rung), want, rtol=1e-6)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("rung", [1, 2, 3])
def test_the_maximum_is_found_wherever_it_is(rung, log):
    at = np.array([0, 1, 31, 32, 255, 256, 298, 299])
    x = np.zeros((8, 300), np.float32)
    x[np.arange(8), at] = 1e4  # any other shift would overflow
    y = fused.forward(x, log, rung=rung)
    np.testing.assert_array_equal(y[np.arange(8), at], 0 if log else 1)
    assert (y.sum(1) == (-299e4 if log else 1)).all()


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", [(4, 9, 33), (0, 8), (5,), (2, 3, 1, 1)])
def test_the_functions_equal_the_plain_ops(shape, dtype):
    x, gy = normal(shape, dtype, 1), normal(shape, dtype, 2)
    for op, other in ((fused.softmax, plain.softmax), (fused.log_softmax, plain.log_softmax)):
        y, (gx,) = backward(op, [x], gy, dim=-1)
        plain_y, (plain_gx,) = backward(other, [x], gy, dim=-1)
        assert y.dtype == plain_y.dtype and y.shape == plain_y.shape
        # both round y, and from there gx
        np.testing.assert_allclose(y, plain_y, rtol=2 * CLOSE[dtype]["rtol"], atol=1e-6)
        np.testing.assert_allclose(gx, plain_gx, 4 * CLOSE[dtype]["rtol"],
                                   1e-2 if dtype == "f2" else 3e-6)


def test_rows_without_columns():
    y, (gx,) = backward(fused.log_softmax, [np.zeros((3, 0), "f4")], np.zeros((3, 0), "f4"), dim=1)
    assert y.shape == gx.shape == (3, 0)


def test_gradients_are_central_differences():
    x = normal((2, 4, 5), "f8", 1)
    gradcheck(lambda x: fused.softmax(x, -1), x)
    gradcheck(lambda x: fused.log_softmax(x, 2), x)
    gradcheck(lambda x: fused.causal_softmax(x, 0.3), x)


def test_causal_softmax_is_softmax_of_masked_scores():
    x = normal((2, 3, 6, 8), "f4", 1)
    mask = np.triu(np.full((6, 8), -np.inf, np.float32), 1)
    want = plain.softmax(tensors(np.float32(0.5) * x + mask)[0], -1).data
    np.testing.assert_allclose(fused.causal_softmax(*tensors(x), 0.5).data, want, **CLOSE["f4"])
    with pytest.raises(ValueError, match=r"causal_softmax: input \(3,\), want \(\.\.\., queries"):
        fused.causal_softmax(*tensors(x[0, 0, 0, :3]))


def test_views_give_what_their_copies_give():
    x, g = normal((8, 12), "f4", 1), normal((8, 12), "f4", 2).T
    for op in (fused.softmax, fused.log_softmax):
        y, (gx,) = backward(op, [x.T], g, dim=-1)
        copy_y, (copy_gx,) = backward(op, [x.T.copy()], g.copy(), dim=-1)
        np.testing.assert_array_equal(y, copy_y)
        np.testing.assert_array_equal(gx, copy_gx)


def test_y_alone_is_saved():
    (x,) = tensors(normal((4, 5), "f4", 1), requires_grad=True)
    y = fused.softmax(x, -1)
    assert [s is y.data for s in y.grad_fn.saved] == [True]


def test_other_dimensions_and_casts_are_left_to_the_plain_op():
    x, scalar = tensors(normal((4, 6), "f4", 1), np.float32(1))
    assert fused.accepts(x, -1) and fused.accepts(x, 1) and fused.accepts(x, 1, np.float32)
    assert not fused.accepts(x, 0) and not fused.accepts(x, 1, np.float16)
    assert not fused.accepts(x, 2) and not fused.accepts(scalar, -1)
