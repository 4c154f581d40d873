"""minidl/ops/cross_entropy.py: five rungs forward, four backward, in any order of threads,
against the formula in float64; the op with and without them: ignored targets, smoothing, sums."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops import cross_entropy
from minidl.tensor import Tensor
from tests.kernel_arrays import normal, with_and_without

SHAPES = [(1, 1), (3, 7), (5, 255), (7, 256), (9, 257), (70, 33), (1, 1009)]  # (rows, classes)
# loss and lse are float32 for float16, too: exp, log and the sum, a few units in the last place of
# numbers up to 20. gx in float16: one rounding, 2^-11; its numbers below 6e-5 are 6e-8 apart
CLOSE = {"f4": dict(rtol=3e-6, atol=3e-6), "f2": dict(rtol=3e-6, atol=3e-6),
         "f8": dict(rtol=1e-12, atol=1e-12)}
CLOSE_GX = {"f4": dict(rtol=5e-6, atol=3e-7), "f2": dict(rtol=1e-3, atol=3e-7),
            "f8": dict(rtol=1e-12, atol=1e-14)}
BACKWARD = {1: 1, 2: 2, 3: 2, 4: 4, 5: 5}  # the rung that goes with one of forward
ORDERS = [{"form": "fibre"}, {"order": "descending"}, {"order": 11}]  # 11: a shuffle


def example(rows, classes, dtype):
    """(x, target, g); every third target is ignored, -1."""
    target = np.random.default_rng(3).integers(0, classes, rows)
    target[1::3] = -1
    return 3 * normal((rows, classes), dtype, 1), target, normal(rows, dtype, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_every_rung_equals_the_formula(dtype, rung, smoothing):
    for shape in SHAPES:
        x, target, g = example(*shape, dtype)
        loss, lse = cross_entropy.by_kernel(x, target, -1, smoothing, rung)
        want_loss, want_lse = cross_entropy.by_numpy(x.astype("f8"), target, -1, smoothing)
        counts = target != -1
        np.testing.assert_allclose(loss, want_loss, **CLOSE[dtype])
        np.testing.assert_allclose(lse[counts], want_lse[counts], **CLOSE[dtype])
        g = g.astype(lse.dtype)
        gx = cross_entropy.by_kernel_backward(g, x, lse, target, -1, smoothing, BACKWARD[rung])
        want = cross_entropy.by_numpy_backward(g.astype("f8"), x.astype("f8"), want_lse, target, -1,
                                        smoothing)
        np.testing.assert_allclose(gx, want, **CLOSE_GX[dtype])
        assert (gx[~counts] == 0).all() and gx.dtype == x.dtype


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_the_order_of_threads_and_blocks_changes_no_bit(rung):
    x, target, g = example(37, 77, "f4")
    results = []
    for ways in ORDERS:
        loss, lse = cross_entropy.by_kernel(x, target, -1, 0.1, rung, **ways)
        gx = cross_entropy.by_kernel_backward(g, x, lse, target, -1, 0.1, BACKWARD[rung], **ways)
        results.append((loss, lse, gx))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_large_logits_and_impossible_classes(rung):
    inf = np.inf
    x = np.array([[1e4, 1e4, 0], [-inf, 2, 2], [5, -inf, -inf], [-inf, -inf, 3]], np.float32)
    target = np.array([1, 2, 0, 0])
    loss, lse = cross_entropy.by_kernel(x, target, rung=rung)
    np.testing.assert_allclose(loss, [np.log(2), np.log(2), 0, inf], rtol=1e-6)
    np.testing.assert_allclose(lse, [1e4 + np.log(2), 2 + np.log(2), 5, 3], rtol=1e-6)
    gx = cross_entropy.by_kernel_backward(np.ones(4, "f4"), x, lse, target, rung=BACKWARD[rung])
    want = [[0.5, -0.5, 0], [0, 0.5, -0.5], [0, 0, 0], [-1, 0, 1]]
    np.testing.assert_allclose(gx, want, atol=5e-4)  # 1e4 + log(2) is rounded to 2^-10


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_the_maximum_is_found_wherever_it_is(rung):
    at = np.array([0, 1, 31, 32, 255, 256, 298, 299])
    x = np.zeros((8, 300), np.float32)
    x[np.arange(8), at] = 1e4  # any other shift would overflow
    loss, lse = cross_entropy.by_kernel(x, at, rung=rung)
    assert (loss == 0).all() and (lse == 1e4).all()


def both(x, target, reduction, gy, **options):
    """[(loss, gx)] of the op with its kernels and without."""
    results = with_and_without(F.cross_entropy, [x], gy, target=Tensor(target),
                               reduction=reduction, **options)
    return [(loss, gx) for loss, (gx,) in results]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("int_dtype", ["i8", "i4", "u1"])
def test_the_op_equals_the_op_without_kernels(int_dtype, dtype, reduction):
    x, target, g = example(40, 33, dtype)
    target[target == -1] = 7
    gy = g if reduction == "none" else np.asarray(1.5, dtype)
    for smoothing in (0.0, 0.2):
        (a, gx), (b, plain_gx) = both(x, target.astype(int_dtype), reduction, gy, ignore_index=7,
                                      label_smoothing=smoothing)
        assert a.dtype == b.dtype and a.shape == b.shape
        close = CLOSE["f4"] if dtype == "f4" else CLOSE_GX["f2"]
        np.testing.assert_allclose(a, b, **close)
        np.testing.assert_allclose(gx, plain_gx, **CLOSE_GX[dtype])


def test_mean_divides_by_the_targets_that_count():
    x, target = normal((6, 5), "f4", 1), np.array([0, -100, 3, -100, -100, 4])
    (a, gx), _ = both(x, target, "mean", np.float32(1))
    real = target != -100
    (b, real_gx), _ = both(x[real], target[real], "mean", np.float32(1))
    np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_array_equal(gx[real], real_gx)
    assert (gx[~real] == 0).all()


def test_a_batch_of_ignored_targets_has_mean_nan_and_gradient_0():
    x, target = normal((3, 5), "f4", 1), np.full(3, -100)
    (a, gx), _ = both(x, target, "mean", np.float32(1))
    assert np.isnan(a) and (gx == 0).all()
    (a, gx), _ = both(x[:0], target[:0], "sum", np.float32(1))
    assert a == 0 and gx.shape == (0, 5)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradients_are_central_differences(smoothing):
    x, target, step = normal((4, 5), "f8", 1), np.array([0, 4, -100, 2]), 1e-6
    g, want = normal(4, "f8", 2), np.empty_like(x)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        rise = (cross_entropy.by_kernel(a, target, smoothing=smoothing)[0] for a in (up, down))
        want[i] = (g * np.subtract(*rise)).sum() / (2 * step)
    _, lse = cross_entropy.by_kernel(x, target, smoothing=smoothing)
    got = cross_entropy.by_kernel_backward(g, x, lse, target, smoothing=smoothing)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)


def test_views_give_what_their_copies_give():
    x, target, _ = example(12, 8, "f4")
    target[target == -1] = 0
    (a, gx), _ = both(x, target, "sum", np.float32(1))
    view = Tensor(x.T.copy().T, requires_grad=True)
    loss = F.cross_entropy(view, Tensor(np.repeat(target, 2)[::2]), reduction="sum")
    loss.backward()
    np.testing.assert_array_equal(loss.array, a)
    np.testing.assert_array_equal(view.grad, gx)


def test_a_target_that_is_no_class_is_named_before_the_launch():
    x = Tensor(normal((3, 5), "f4", 1))
    for bad in (5, -1):
        with pytest.raises(IndexError, match=f"cross_entropy: target {bad} is no class. .* 0 to 4"):
            F.cross_entropy(x, Tensor(np.array([0, bad, 2])))


def test_the_logits_and_a_number_a_row_are_saved():
    x = Tensor(normal((8, 50), "f4", 1), requires_grad=True)
    target = Tensor(np.zeros(8, np.int64))
    saved = F.cross_entropy(x, target).grad_fn.saved
    assert saved[0] is x.array and np.shares_memory(saved[1], target.array)
    assert saved[2].shape == (8,) and saved[3] is None


@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 3, 4, 5), (5,)])
def test_images_and_single_rows_are_rows_of_classes(shape):
    """Classes are the second dimension: the kernel gets them last, and gx comes back as x lies."""
    x = normal(shape, "f4", 1)
    target = np.random.default_rng(2).integers(0, shape[1] if len(shape) > 1 else 5,
                                               shape[:1] + shape[2:] if len(shape) > 1 else ())
    (a, gx), (b, plain_gx) = both(x, target, "mean", np.float32(1))
    np.testing.assert_allclose(a, b, **CLOSE["f4"])
    np.testing.assert_allclose(gx, plain_gx, **CLOSE_GX["f4"])


def test_class_weights_and_probabilities_are_numpys(monkeypatch):
    x, target = normal((3, 5), "f4", 1), np.zeros(3, np.int64)
    monkeypatch.setattr(cross_entropy, "by_kernel", None)  # calling it would be an error
    (a, _), (b, _) = both(x, target, "mean", np.float32(1), weight=Tensor(np.ones(5, "f4")))
    assert a == b
    both(x, np.full((3, 5), 0.2, "f4"), "mean", np.float32(1))


def test_wrong_options_are_named():
    x, target = Tensor(normal((3, 5), "f4", 1)), np.zeros(3, np.int64)
    for options, match in ((dict(reduction="average"), "reduction"),
                           (dict(label_smoothing=1.5), "label_smoothing .* got 1.5")):
        with pytest.raises(ValueError, match=match):
            F.cross_entropy(x, target, **options)
    with pytest.raises(ValueError, match="cross_entropy: input"):
        F.cross_entropy(x, target[:2])


def test_a_large_logit_of_an_ignored_row_harms_no_gradient_when_the_switch_changes():
    """The kernel keeps no lse of an ignored row: NumPy's backward must not make inf * 0 of it."""
    x = np.array([[200, 0, 1], [0, 1, 2]], np.float32)
    t = Tensor(x, requires_grad=True)
    loss = F.cross_entropy(t, np.array([-100, 1]))
    with minidl.use_fused(False):
        loss.backward()
    assert (t.grad[0] == 0).all()
    np.testing.assert_allclose(t.grad[1], [0.09003057, -0.75527153, 0.66524096], rtol=1e-5)


@pytest.mark.parametrize("rung", [4, 5])
@pytest.mark.parametrize("at, cols", [(0, 45), (1, 48), (3, 49)])
def test_packs_of_rows_that_begin_anywhere(at, cols, rung):
    """50257 classes: in float16 each row begins two bytes off another multiple of 16; and an array
    that begins off one itself, while its gradient does not. Under watch, which sees an address that
    is none of a pack."""
    x, target, g = example(3, cols, "f2")
    memory = np.empty(x.size + at, "f2")
    memory[at:] = x.ravel()
    x, g = memory[at:].reshape(3, cols), g.astype("f4")
    loss, lse = cross_entropy.by_kernel(x, target, -1, 0.1, 1)
    gx = cross_entropy.by_kernel_backward(g, x, lse, target, -1, 0.1, 1)
    got = cross_entropy.by_kernel(x, target, -1, 0.1, rung, form="check")
    np.testing.assert_allclose(got[0], loss, rtol=1e-6, atol=1e-6)  # other orders of sums
    np.testing.assert_allclose(got[1], lse, rtol=1e-6, atol=1e-6)
    got = cross_entropy.by_kernel_backward(g, x, lse, target, -1, 0.1, rung, form="check")
    np.testing.assert_allclose(got, gx, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_what_is_no_number_makes_the_loss_none(rung):
    """Also where all else that the same thread sees is minus infinity."""
    x = np.full((2, 40), -np.inf, np.float32)
    x[0, 0] = x[1, 19] = np.nan
    x[:, 20:] = 1
    assert np.isnan(cross_entropy.by_kernel(x, np.full(2, 30), rung=rung)[0]).all()
