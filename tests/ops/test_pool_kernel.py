"""minidl/ops/pool.py: the kernels for a CPU and for a GPU, forward and backward, in any order of
threads, against the NumPy forms and PyTorch."""

import numpy as np
import pytest

import minidl
from minidl import cuda
from minidl.nn import functional as F
from minidl.ops import pool
from minidl.ops.pool import Window
from tests.kernel_arrays import normal, with_and_without

RUNGS = ["cpu", 1]
ORDERS = [{"form": "fibre"}, {"order": "descending"}, {"order": 11}]  # 11: a shuffle
# image (N, C, H, W); kernel, stride, padding, dilation, ceil_mode
CASES = [
    ((2, 3, 4, 6), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((3, 2, 11, 11), (2, 2), (2, 2), (0, 0), (1, 1), False),  # an odd row and column
    ((1, 2, 11, 11), (2, 2), (2, 2), (0, 0), (1, 1), True),
    ((2, 2, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1), False),  # windows that overlap
    ((2, 2, 7, 9), (3, 3), (1, 1), (1, 1), (1, 1), False),
    ((1, 3, 9, 8), (3, 2), (2, 3), (1, 1), (1, 2), True),
    ((1, 2, 8, 13), (2, 3), (3, 4), (1, 0), (2, 2), False),  # gaps
    ((2, 1, 1, 700), (1, 2), (1, 2), (0, 0), (1, 1), False),  # a row of more than a strip
    ((1, 1, 700, 3), (2, 2), (1, 1), (1, 1), (1, 1), False),
    ((1, 1, 20, 22), (17, 16), (2, 3), (8, 8), (1, 1), False),  # 272 elements: no byte
]


def window_of(shape, kernel, stride, padding, dilation, ceil_mode):
    padding = tuple((p, p) for p in padding)
    out, wider = pool.fit(shape, kernel, stride, padding, dilation, ceil_mode)
    return Window(kernel, stride, wider, dilation, out)


def values(shape, dtype):
    """With equal ones in many windows, so that it shows who is the first."""
    return np.round(2 * normal(shape, "f8", 1)).astype(dtype)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize("shape, kernel, stride, padding, dilation, ceil_mode", CASES)
def test_every_rung_equals_the_numpy_form(rung, dtype, shape, kernel, stride, padding, dilation,
                                          ceil_mode):
    window, x = window_of(shape, kernel, stride, padding, dilation, ceil_mode), values(shape, dtype)
    want, winner = pool.max_by_numpy(x, window)
    got = pool.max_by_kernel(x, window, rung)
    for a, b in zip(got, (want, winner), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    gy = np.round(8 * normal(want.shape, "f8", 2)).astype(dtype)  # sums of these are exact
    np.testing.assert_array_equal(
        pool.max_by_kernel_backward(gy, winner, shape, window, rung),
        pool.max_by_numpy_backward(gy, winner, shape, window))

    if dilation == (1, 1):
        sums = np.result_type(dtype, "f4")
        divisor = 1 + np.abs(normal(window.out, sums, 3))
        tolerance = {"f4": 1e-6, "f2": 1e-3, "f8": 1e-14}[dtype]  # the sum in another order
        np.testing.assert_allclose(
            pool.avg_by_kernel(x, divisor, window, rung), pool.avg_by_numpy(x, divisor, window),
            tolerance, 100 * tolerance)
        np.testing.assert_allclose(
            pool.avg_by_kernel_backward(gy, divisor, shape, window, rung),
            pool.avg_by_numpy_backward(gy, divisor, shape, window), tolerance, 1000 * tolerance)


@pytest.mark.parametrize("rung", RUNGS)
def test_the_order_of_threads_changes_no_bit(rung):
    shape, *options = CASES[3]
    window, x = window_of(shape, *options), normal(shape, "f4", 1)
    divisor = np.full(window.out, 9, "f4")
    results = []
    for ways in ORDERS:
        y, winner = pool.max_by_kernel(x, window, rung, **ways)
        results.append([y, winner,
                        pool.max_by_kernel_backward(y, winner, shape, window, rung, **ways),
                        pool.avg_by_kernel(x, divisor, window, rung, **ways),
                        pool.avg_by_kernel_backward(y, divisor, shape, window, rung, **ways)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("kernel, stride", [((3, 3), (2, 3)), ((3, 3), (3, 2))])
def test_windows_that_share_one_row_add_up(kernel, stride, rung):
    shape = (1, 1, 9, 9)
    window = window_of(shape, kernel, stride, (0, 0), (1, 1), False)
    x = np.zeros(shape, "f4")
    x[..., 2, 2] = 1  # the last of the first window, in the second one too
    y, winner = pool.max_by_kernel(x, window, rung)
    gx = pool.max_by_kernel_backward(np.ones_like(y), winner, shape, window, rung)
    np.testing.assert_array_equal(
        gx, pool.max_by_numpy_backward(np.ones_like(y), winner, shape, window))
    assert gx[0, 0, 2, 2] == 2


def special(shape):
    """Ones and nans, and -inf in whole corners: who wins there?"""
    x = values(shape, "f4")
    x[..., :3, :3] = -np.inf
    x[..., -1, -1] = np.nan
    x[..., -2, 1::3] = np.nan
    return x


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("shape, kernel, stride, padding, dilation, ceil_mode", CASES[:7])
def test_max_pooling_equals_pytorch_with_nan_inf_and_equals(kernels, shape, kernel, stride,
                                                            padding, dilation, ceil_mode):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = special(shape)
    theirs = torch.tensor(x, requires_grad=True)
    options = kernel, stride, padding, dilation, ceil_mode, True
    want, places = torch.nn.functional.max_pool2d(theirs, *options)
    gy = np.round(8 * normal(tuple(want.shape), "f8", 2)).astype("f4")
    want.backward(torch.tensor(gy))
    with minidl.use_fused(kernels):
        ours = minidl.Tensor(x, requires_grad=True)
        y, at = F.max_pool2d(ours, *options)
        y.backward(gy)
    np.testing.assert_array_equal(y.numpy(), want.detach().numpy())
    np.testing.assert_array_equal(at.numpy(), places.numpy())
    np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 7)])
def test_the_mean_of_parts_of_an_image_equals_pytorch(size, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, gy = normal((3, 4, 5, 7), dtype, 1), normal((3, 4, *size), dtype, 2)
    theirs = torch.tensor(x, requires_grad=True)
    want = torch.nn.functional.adaptive_avg_pool2d(theirs, size)
    want.backward(torch.tensor(gy))
    ours = minidl.Tensor(x, requires_grad=True)
    y = F.adaptive_avg_pool2d(ours, size)
    y.backward(gy)
    tolerance = {"f4": 1e-6, "f2": 2e-3}[dtype]  # float16: two roundings of 2^-11
    np.testing.assert_allclose(y.numpy(), want.detach().numpy(), tolerance, tolerance)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), tolerance, tolerance)
    assert y.dtype == x.dtype


def test_no_images_integers_and_views():
    for op in (F.max_pool2d, F.avg_pool2d, lambda x, _: F.adaptive_avg_pool2d(x, 1)):
        x = minidl.Tensor(np.zeros((0, 3, 4, 4), "f4"), requires_grad=True)
        y = op(x, 2)
        y.backward(np.zeros(y.shape, "f4"))
        assert y.shape[:2] == (0, 3) and x.grad.shape == x.shape
    x = values((1, 2, 6, 4), "i4")
    want = x.reshape(1, 2, 3, 2, 2, 2).max(axis=(3, 5))
    np.testing.assert_array_equal(F.max_pool2d(minidl.Tensor(x), 2).numpy(), want)
    x = normal((2, 6, 4, 3), "f4", 1)  # channels last
    for op in (F.max_pool2d, F.avg_pool2d):
        (y, (g,)), (plain_y, (plain_g,)) = with_and_without(
            lambda x, op=op: op(x.permute(0, 3, 1, 2), 2), (x,), normal((2, 3, 3, 2), "f4", 2))
        np.testing.assert_allclose(y, plain_y, rtol=1e-6)  # a sum of four in another order
        np.testing.assert_allclose(g, plain_g, rtol=1e-6)


@pytest.mark.parametrize("case", [0, 3, 5, 9])
@pytest.mark.parametrize("dtype, t", [("f4", "float"), ("f2", "__half")])
def test_under_watch_nothing_is_found(case, dtype, t, monkeypatch):
    shape, *options = CASES[case]
    window, x = window_of(shape, *options), values(shape, dtype)
    divisor, launches = np.full(window.out, 4, "f4"), []

    def watched(file, name, dtype, **defines):
        def run(grid, block, args):
            report = cuda.check(file, grid, block, args, name=name, defines={"T": t, **defines})
            assert not report.findings, str(report)
            launches.append(name)
        return run

    monkeypatch.setattr(pool.row_kernels, "kernel", watched)
    for rung in RUNGS:
        y, winner = pool.max_by_kernel(x, window, rung)
        pool.max_by_kernel_backward(y, winner, shape, window, rung)
        pool.avg_by_kernel(x, divisor, window, rung)
        pool.avg_by_kernel_backward(y, divisor, shape, window, rung)
        np.testing.assert_array_equal(y, pool.max_by_numpy(x, window)[0])
    assert len(launches) == 8
