"""minidl/ops/batch_norm.py: the passes for a CPU and the two rungs for a GPU, forward, backward and
with the statistics given, in any order of threads, against the formula in float64 and PyTorch."""

import numpy as np
import pytest

import minidl
from minidl import cuda
from minidl.nn import functional as F
from minidl.ops import batch_norm
from tests.kernel_arrays import normal, tensors, with_and_without

RUNGS = ["cpu", 1, 2]
# (N, C, ...): one place, few places, an odd row, a plane of 64, more channels than a row or a join
# takes, several groups of samples, a plane of more than one piece
SHAPES = [(2, 3), (70, 130), (5, 3, 2), (3, 530, 1), (40, 7, 3, 5), (3, 65, 7, 9), (2, 3, 8, 8),
          (3, 2, 5, 821)]
# float32: sums of n terms lose a few units in the last place (2^-24 = 6e-8);
# float16: one rounding of the result, 2^-11
CLOSE = {"f4": 4e-6, "f2": 1e-3, "f8": 1e-12}
ORDERS = [{"form": "fibre"}, {"order": "descending"}, {"order": 11}]  # 11: a shuffle
EPS = 1e-5
NAMES = "y mean var r gx gw gb".split()


def example(shape, dtype):
    """x with a mean far from zero, w, b in the dtype of the sums, gy."""
    sums = np.result_type(dtype, "f4")
    x = (3 + 2 * normal(shape, "f8", 1)).astype(dtype)
    w, b = (1 + normal(shape[1], "f8", 2)).astype(sums), normal(shape[1], sums, 3)
    return x, w, b, normal(shape, dtype, 4)


def wanted(x, w, b, gy):
    x, w, b, gy = (a.astype("f8") for a in (x, w, b, gy))
    y, mean, var, r = batch_norm.by_numpy(x, w, b, EPS)
    return y, mean, var, r, *batch_norm.by_numpy_backward(gy, x, w, mean, r)


def computed(x, w, b, gy, rung=None, **ways):
    y, mean, var, r = batch_norm.by_kernel(x, w, b, EPS, rung, **ways)
    grads = batch_norm.by_kernel_backward(gy, x, w, mean, r, True, rung, **ways)
    return y, mean, var, r, *grads


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_every_rung_equals_the_formula(dtype, rung):
    for shape in SHAPES:
        arrays = example(shape, dtype)
        n = arrays[0].size // shape[1]
        for name, a, b in zip(NAMES, computed(*arrays, rung), wanted(*arrays), strict=True):
            # sums over n numbers; of two samples r may be large, and with it each rounding
            scale = 4 * np.sqrt(n) if name in ("gw", "gb") else 4 if n > 8 else 400
            np.testing.assert_allclose(a, b, CLOSE[dtype] * scale, CLOSE[dtype] * scale,
                                       err_msg=f"{name} of {shape}")
            assert a.dtype == np.dtype(dtype if name in ("y", "gx") else arrays[1].dtype)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_with_the_statistics_given(dtype, rung):
    for shape in SHAPES:
        x, w, b, gy = example(shape, dtype)
        mean, r = normal(shape[1], "f4", 5), np.abs(normal(shape[1], "f4", 6)) + 0.5
        wide = [a.astype("f8") for a in (gy, x, w, mean, r)]
        y = batch_norm.by_kernel_eval(x, w, b, mean, r, rung)
        np.testing.assert_allclose(
            y, batch_norm.by_numpy_eval(wide[1], wide[2], b.astype("f8"), *wide[3:]),
            8 * CLOSE[dtype], 8 * CLOSE[dtype])
        got = batch_norm.by_kernel_backward(gy, x, w, mean, r, False, rung)
        for a, c in zip(got, batch_norm.by_numpy_backward(*wide, False), strict=True):
            tolerance = CLOSE[dtype] * 8 * np.sqrt(x.size // shape[1])  # a sum over n numbers
            np.testing.assert_allclose(a, c, tolerance, tolerance)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", [(33, 40, 2, 3), (5, 9, 8, 9)])
def test_the_order_of_threads_and_blocks_changes_no_bit(shape, rung):
    arrays = example(shape, "f4")
    first, *others = [computed(*arrays, rung, **ways) for ways in ORDERS]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(64, 512, 2, 2), (16, 33, 16, 16)])
def test_the_number_of_threads_changes_no_bit(shape):
    arrays = example(shape, "f4")
    before = cuda.set_threads(1)
    one = computed(*arrays)
    cuda.set_threads(3)
    three = computed(*arrays)
    cuda.set_threads(before)
    for a, b in zip(one, three, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", [(300, 5), (600, 2, 3), (4, 2, 20, 30), (2, 1, 100, 100)])
def test_a_large_mean_does_not_swallow_the_variance(shape, rung):
    # mean 4096, deviation 1: x^2 has 24 bits, so the mean of squares minus the square of the mean
    # would have none left
    x = (4096 + np.random.default_rng(0).integers(-2, 3, shape)).astype("f4")
    w, b = np.ones(shape[1], "f4"), np.zeros(shape[1], "f4")
    y, mean, var, r = batch_norm.by_kernel(x, w, b, EPS, rung)
    want = batch_norm.by_numpy(x.astype("f8"), 1 + np.zeros(shape[1]), np.zeros(shape[1]), EPS)
    np.testing.assert_allclose(r, want[3], rtol=1e-4)
    # the mean's last place is 2^-12; v1 adds up to 10,000 numbers one after the other
    np.testing.assert_allclose(y, want[0], atol=2e-3 if rung != 1 else 2e-2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 7), (4, 3, 9, 8)])
def test_the_op_equals_pytorch_and_the_op_without_kernels(shape, training):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, w, b, gy = example(shape, "f4")
    running = [normal(shape[1], "f4", 7), np.abs(normal(shape[1], "f4", 8)) + 0.5]
    theirs = [torch.tensor(a) for a in running]
    inputs = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    want = torch.nn.functional.batch_norm(inputs[0], *theirs, *inputs[1:], training, 0.3, EPS)
    want.backward(torch.tensor(gy))

    def op(x, w, b):
        ours = [minidl.Tensor(a.copy()) for a in running]
        y = F.batch_norm(x, *ours, w, b, training, 0.3, EPS)
        for a, c in zip(ours, theirs, strict=True):  # n / (n - 1), momentum
            np.testing.assert_allclose(a.numpy(), c.numpy(), 1e-5, 1e-6)
        return y

    for y, grads in with_and_without(op, (x, w, b), gy):
        np.testing.assert_allclose(y, want.detach().numpy(), 1e-5, 1e-5)
        for a, c in zip(grads, inputs, strict=True):
            np.testing.assert_allclose(a, c.grad.numpy(), 1e-4, 1e-4)


def test_weights_of_another_width_and_none_at_all():
    x, w, b, gy = example((9, 4, 5), "f2")
    (y, grads), (plain_y, plain_grads) = with_and_without(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (x, w, b), gy)
    assert y.dtype == plain_y.dtype == np.float16 and grads[1].dtype == np.float32
    np.testing.assert_allclose(y, plain_y, 2e-3, 2e-3)  # a rounding of 2^-11 each
    for a, c in zip(grads, plain_grads, strict=True):
        np.testing.assert_allclose(a, c, 2e-3, 2e-3)
    y = F.batch_norm(minidl.Tensor(x), None, None, training=True)
    ones = batch_norm.by_numpy(x, np.ones(4, "f4"), np.zeros(4, "f4"), EPS)[0]
    np.testing.assert_allclose(y.numpy(), ones, 2e-3, 2e-3)


def test_a_batch_without_samples_and_a_view():
    empty = minidl.Tensor(np.zeros((0, 3, 2), "f4"), requires_grad=True)
    y = F.batch_norm(empty, minidl.zeros(3), minidl.ones(3))
    y.backward(np.zeros((0, 3, 2), "f4"))
    assert y.shape == empty.grad.shape == (0, 3, 2)
    x = normal((4, 6, 5, 3), "f4", 1)  # channels last
    (y, grads), _ = with_and_without(
        lambda x: F.batch_norm(x.permute(0, 3, 1, 2), None, None, training=True), (x,),
        normal((4, 3, 6, 5), "f4", 2))
    in_order = F.batch_norm(minidl.Tensor(x.transpose(0, 3, 1, 2).copy()), None, None,
                            training=True)
    np.testing.assert_array_equal(y, in_order.numpy())


def test_x_itself_and_two_numbers_a_channel_are_saved():
    x, w, b = tensors(normal((8, 3, 5), "f4", 1), normal(3, "f4", 2), normal(3, "f4", 3),
                      requires_grad=True)
    saved = F.batch_norm(x, None, None, w, b, training=True).grad_fn.saved
    assert np.shares_memory(saved[0], x.array) and np.shares_memory(saved[1], w.array)
    assert sum(s.nbytes for s in saved[2:]) == 2 * 3 * 4


@pytest.mark.parametrize("shape", [(5, 3), (4, 2, 3), (3, 2, 64), (1, 2, 70)])
@pytest.mark.parametrize("dtype, t", [("f4", "float"), ("f2", "__half")])
def test_under_watch_nothing_is_found(shape, dtype, t, monkeypatch):
    x, w, b, gy = example(shape, dtype)
    launches = []

    def watched(file, name, dtype, **defines):
        def run(grid, block, args):
            defines.setdefault("T", t)
            report = cuda.check(file, grid, block, args, name=name, defines=defines)
            assert not report.findings, str(report)
            launches.append(name)
        return run

    monkeypatch.setattr(batch_norm.row_kernels, "kernel", watched)
    for rung in RUNGS:
        got = computed(x, w, b, gy, rung)
        batch_norm.by_kernel_eval(x, w, b, got[1], got[3], rung)
        np.testing.assert_allclose(got[0], wanted(x, w, b, gy)[0], rtol=2e-2, atol=2e-2)
    assert len(launches) == 3 + 3 + 1 + 2 * 3
