"""minidl/ops/layer_norm.py: five rungs forward and backward, in any order of threads, against
the formula in float64; the ops layer norm and RMS norm with and without them."""

import numpy as np
import pytest

from minidl.nn import functional as F
from minidl.ops import layer_norm
from tests.kernel_arrays import backward, normal, tensors, with_and_without

SHAPES = [(1, 1), (3, 7), (5, 255), (7, 256), (9, 257), (70, 33), (1, 1009)]  # (rows, cols)
# float32: sums of n terms lose a few units in the last place (2^-24 = 6e-8);
# float16: one rounding of the result, 2^-11
CLOSE = {"f4": dict(rtol=3e-6, atol=3e-6), "f2": dict(rtol=1e-3, atol=1e-3),
         "f8": dict(rtol=1e-12, atol=1e-12)}
ORDERS = [{"form": "fibre"}, {"order": "descending"}, {"order": 11}]  # 11: a shuffle
EPS = 1e-5


def example(rows, cols, dtype):
    """x with a mean far from zero, w, b, gy."""
    x = (3 + 2 * normal((rows, cols), "f8", 1)).astype(dtype)
    w, b = (1 + normal(cols, "f8", 2)).astype(dtype), normal(cols, dtype, 3)
    return x, w, b, normal((rows, cols), dtype, 4)


def wanted(x, w, b, gy, centered):
    x, w, b, gy = (a.astype("f8") for a in (x, w, b, gy))
    y, mean, rstd = layer_norm.by_numpy(x, w, b if centered else None, EPS, centered)
    return y, mean, rstd, *layer_norm.by_numpy_backward(gy, x, w, mean, rstd, centered)


def computed(x, w, b, gy, centered, rung=None, **ways):
    y, mean, rstd = layer_norm.by_kernel(x, w, b, EPS, centered, rung, **ways)
    grads = layer_norm.by_kernel_backward(gy, x, w, mean, rstd, centered, rung, **ways)
    return y, mean, rstd, *grads


@pytest.mark.parametrize("centered", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_every_rung_equals_the_formula(dtype, rung, centered):
    for rows, cols in SHAPES:
        arrays = example(rows, cols, dtype)
        got, want = computed(*arrays, centered, rung), wanted(*arrays, centered)
        tolerance = CLOSE[dtype]
        names = "y mean rstd gx gw gb".split()
        for name, a, b in zip(names, got, want, strict=True):
            if not centered and name == "gb":
                continue  # RMS norm has none
            if cols == 1 and name in ("rstd", "gx") and centered:
                continue  # variance 0: 1 / sqrt(eps) = 316 magnifies any rounding
            scale = 4 * np.sqrt(rows) if name in ("gw", "gb") else 4  # sums over the rows
            np.testing.assert_allclose(a, b, tolerance["rtol"], tolerance["atol"] * scale,
                                       err_msg=f"{name} of {rows} x {cols}")
        assert got[0].dtype == got[3].dtype == np.dtype(dtype)


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_the_order_of_threads_and_blocks_changes_no_bit(rung):
    arrays = example(37, 77, "f4")
    first, *others = [computed(*arrays, True, rung, **ways) for ways in ORDERS]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_number_of_threads_changes_no_bit():
    from minidl.cuda import set_threads

    arrays = example(3000, 300, "f4")
    before = set_threads(1)
    one = computed(*arrays, True)
    set_threads(3)
    three = computed(*arrays, True)
    set_threads(before)
    for a, b in zip(one, three, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_a_large_mean_does_not_swallow_the_variance(rung):
    # mean 4096, deviation 1: x^2 has 24 bits, so the mean of squares minus the square of the mean
    # would have none left
    x = (4096 + np.random.default_rng(0).integers(-2, 3, (4, 600))).astype("f4")
    w, b = np.ones(600, "f4"), np.zeros(600, "f4")
    y, mean, rstd = layer_norm.by_kernel(x, w, b, EPS, True, rung)
    want = layer_norm.by_numpy(x.astype("f8"), 1, 0, EPS)
    np.testing.assert_allclose(rstd, want[2], rtol=1e-4)
    np.testing.assert_allclose(y, want[0], atol=2e-3)  # the mean's last place is 2^-12


@pytest.mark.parametrize("rows", [511, 512, 1000])
def test_parameter_gradients_of_64_parts_equal_those_of_8(rows, monkeypatch):
    arrays = example(rows, 19, "f8")
    got = computed(*arrays, True)[-2:]
    monkeypatch.setattr(layer_norm, "number_of_parts", lambda xp, rows: 512)
    for a, b, c in zip(got, computed(*arrays, True)[-2:], wanted(*arrays, True)[-2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape, n_dims", [((4, 9, 33), 1), ((4, 9, 33), 2), ((0, 8), 1),
                                           ((600, 24), 1), ((5,), 1)])
def test_the_ops_equal_the_ops_without_kernels(shape, n_dims, dtype):
    x, gy = normal(shape, dtype, 1), normal(shape, dtype, 2)
    wide = shape[-n_dims:]
    w, b = 1 + normal(wide, dtype, 3), normal(wide, dtype, 4)
    # of the plain op's, the products for gw are rounded to float16 before they are added
    tolerance = CLOSE[dtype] | {"atol": CLOSE[dtype]["atol"] * 30}
    for op, arrays in ((F.layer_norm, (x, w, b)), (F.rms_norm, (x, w))):
        for params in (arrays, arrays[:1]):
            (y, grads), (plain_y, plain_grads) = with_and_without(
                lambda x, *p, op=op: op(x, wide, *p), params, gy)
            assert y.dtype == plain_y.dtype == np.dtype(dtype)
            np.testing.assert_allclose(y, plain_y, **CLOSE[dtype])
            for a, c in zip(grads, plain_grads, strict=True):
                assert a.dtype == c.dtype and a.shape == c.shape
                np.testing.assert_allclose(a, c, **tolerance)


@pytest.mark.parametrize("centered", [True, False], ids=["layer_norm", "rms_norm"])
def test_gradients_are_central_differences(centered):
    x, gy = normal((3, 10), "f8", 1), normal((3, 10), "f8", 2)
    w, b, step = normal(10, "f8", 3), normal(10, "f8", 4), 1e-6
    got = computed(x, w, b, gy, centered)[3:]
    for k, g in enumerate(got[:3 if centered else 2]):
        for i in np.ndindex(*g.shape):
            losses = []
            for sign in (1, -1):
                arrays = [x.copy(), w.copy(), b.copy()]
                arrays[k][i] += sign * step
                losses.append((gy * layer_norm.by_kernel(*arrays, EPS, centered)[0]).sum())
            assert g[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-8)


def test_views_give_what_their_copies_give():
    x, w, b = normal((8, 12), "f4", 1), normal(16, "f4", 2)[::2], normal(8, "f4", 3)
    g = normal((12, 8), "f4", 4)

    def op(x, w, b):
        return F.layer_norm(x, 8, w, b)

    views = backward(op, [x.T, w, b], g.T.copy().T)
    copies = backward(op, [x.T.copy(), w.copy(), b], g)
    np.testing.assert_array_equal(views[0], copies[0])
    for a, c in zip(views[1], copies[1], strict=True):
        np.testing.assert_array_equal(a, c)


def test_x_itself_and_two_numbers_a_row_are_saved():
    arrays = normal((64, 32), "f4", 1), normal(32, "f4", 2), normal(32, "f4", 3)
    x, w, b = tensors(*arrays, requires_grad=True)
    saved = F.layer_norm(x, 32, w, b).grad_fn.saved
    assert np.shares_memory(saved[0], x.array) and np.shares_memory(saved[1], w.array)
    assert sum(s.nbytes for s in saved[2:]) == 64 * 2 * 4


def test_shapes_that_do_not_fit_are_named_and_two_dtypes_are_numpys():
    x, w, b = tensors(normal((4, 6), "f4", 1), normal(6, "f4", 2), normal(6, "f2", 3))
    with pytest.raises(ValueError, match="layer_norm: normalized_shape"):
        F.layer_norm(x, 4)
    with pytest.raises(ValueError, match="layer_norm: weight"):
        F.layer_norm(x, (4, 6), w)
    wide = layer_norm.by_numpy(x.array, w.array, b.array, EPS)[0]
    np.testing.assert_allclose(F.layer_norm(x, 6, w, b).array, wide, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="layer_norm"):
        F.layer_norm(tensors(np.arange(6))[0], 6)
