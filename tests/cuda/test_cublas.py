"""minidl/cuda/cublas.py: which numbers cuBLAS is given for arrays of any strides. Without a GPU a
function that reads memory as cuBLAS's documentation says takes its place."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import minidl
from minidl.backend import import_cupy
from minidl.cuda import cublas

RNG = np.random.default_rng(0)
C_TYPES = {0: np.float32, 1: np.float64, 2: np.float16}


def matrix(memory, kind, at, n_rows, n_cols, leading):
    """A matrix that is stored by columns: element (i, j) is at i + j * leading."""
    items = memory.view(C_TYPES[kind])
    size = items.itemsize
    return np.lib.stride_tricks.as_strided(items[at:], (n_rows, n_cols), (size, leading * size))


class Documented:
    """cublasGemmEx and cublasGemmStridedBatchedEx: c = op(a) op(b), by columns, m x n from depth k.
    An address here is a pair: (memory, byte offset)."""

    def cublasGemmEx(self, handle, ta, tb, m, n, k, one, a, kind_a, lda, b, kind_b, ldb, zero,
                     c, kind_c, ldc, compute, algorithm):
        return self.cublasGemmStridedBatchedEx(
            handle, ta, tb, m, n, k, one, a, kind_a, lda, 0, b, kind_b, ldb, 0, zero, c, kind_c,
            ldc, 0, 1, compute, algorithm)

    def cublasGemmStridedBatchedEx(self, handle, ta, tb, m, n, k, one, a, kind_a, lda, step_a, b,
                                   kind_b, ldb, step_b, zero, c, kind_c, ldc, step_c, count,
                                   compute, algorithm):
        assert compute == (70 if kind_a == 1 else 68) and algorithm == -1
        assert lda >= (k if ta else m) and ldb >= (n if tb else k) and ldc >= m
        for i in range(count):
            x, y, z = (matrix(memory, kind, at // C_TYPES[kind]().itemsize + i * step, *shape, ld)
                       for (memory, at), kind, step, shape, ld in (
                           (a, kind_a, step_a, (k, m) if ta else (m, k), lda),
                           (b, kind_b, step_b, (n, k) if tb else (k, n), ldb),
                           (c, kind_c, step_c, (m, n), ldc)))
            z[:] = (x.T if ta else x) @ (y.T if tb else y)
        return 0


class OnDevice(np.ndarray):
    """A NumPy array whose `data.ptr` is the pair that Documented reads."""

    @property
    def data(self):
        memory = self
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        return SimpleNamespace(ptr=(np.asarray(memory).reshape(-1).view(np.uint8),
                                    self.ctypes.data - memory.ctypes.data))


LIBRARY = SimpleNamespace(ascontiguousarray=lambda x: np.ascontiguousarray(x).view(OnDevice))


def documented(a, b, c):
    """c = a @ b, computed from what cuBLAS would be given."""
    compute = cublas.COMPUTE_64F if c.dtype == "d" else cublas.COMPUTE_32F
    cublas.product(Documented(), None, cublas.layout(LIBRARY, a), cublas.layout(LIBRARY, b), c,
                   compute)


def views(*shape, dtype):
    """Arrays of one shape and different strides: rows, columns, every second row, part of a row,
    other orders of the leading dimensions."""
    def new(*sizes):
        return RNG.integers(-4, 5, sizes).astype(dtype).view(OnDevice)

    yield new(*shape)
    yield new(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
    yield new(*shape[:-2], 2 * shape[-2], shape[-1])[..., ::2, :]
    yield new(*shape[:-1], shape[-1] + 3)[..., 2:-1]
    yield new(*shape[:-1], 2 * shape[-1])[..., ::2]
    if len(shape) > 2:
        yield np.moveaxis(new(*shape[1:], shape[0]), -1, 0)
        yield new(*shape[:-3], shape[-2], shape[-3], shape[-1]).swapaxes(-2, -3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_products_of_all_views_are_those_of_numpy(batch, dtype):
    for n, k, m in itertools.product((1, 2, 5), repeat=3):
        for a, b in itertools.product(views(*batch, n, k, dtype=dtype),
                                      views(*batch, k, m, dtype=dtype)):
            c = np.zeros((*batch, n, m), dtype).view(OnDevice)
            documented(a, b, c)
            wanted = np.matmul(np.asarray(a), np.asarray(b))
            assert np.array_equal(c, wanted), (a.strides, b.strides)


def test_one_matrix_serves_a_whole_batch():
    a = RNG.integers(-4, 5, (3, 2, 5)).astype("f").view(OnDevice)
    b = RNG.integers(-4, 5, (5, 4)).astype("f").view(OnDevice)
    c = np.zeros((3, 2, 4), "f").view(OnDevice)
    documented(a, b, c)
    assert np.array_equal(c, np.asarray(a) @ np.asarray(b))


def test_a_status_is_an_error_that_names_the_shapes():
    a = RNG.standard_normal((2, 2)).view(OnDevice)
    failing = SimpleNamespace(cublasGemmEx=lambda *_: 13)
    layouts = [cublas.layout(LIBRARY, a)] * 2
    with pytest.raises(RuntimeError, match=r"status 13 for \(2, 2\) @ \(2, 2\) of float64"):
        cublas.product(failing, None, *layouts, a, cublas.COMPUTE_64F)


def test_views_that_cublas_reads_are_not_copied():
    x = RNG.standard_normal((4, 6, 8)).view(OnDevice)
    for view in (x, x.swapaxes(-1, -2), x[:, 1:3], x[..., 2:5], x[1:]):
        assert cublas.view_layout(view).array is view
    for view in (x[..., ::2], x.swapaxes(0, 2)[:, ::2], x[::-1, :, ::-1]):
        assert cublas.view_layout(view) is None


@pytest.mark.parametrize("a, b, batch", [
    ((), (), ()), ((3,), (), (3,)), ((), (3,), (3,)), ((2, 3), (2, 3), (2, 3)),
    ((3,), (1,), None), ((2, 3), (3,), None)])
def test_batches_that_must_be_broadcast_are_left_to_cupy(a, b, batch):
    assert cublas.common_batch(a, b) == batch


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [("float16", 2e-3), ("float32", 1e-5),
                                              ("float64", 1e-12)])
@pytest.mark.parametrize("shapes", [
    ((64, 32), (32, 48)), ((1, 7), (7, 1)), ((3, 5, 7), (7, 2)), ((2, 3, 5, 7), (2, 3, 7, 4)),
    ((2, 1, 5, 7), (1, 3, 7, 4)), ((5, 7), (3, 7, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))], ids=str)
def test_products_on_a_gpu(shapes, dtype, tolerance):
    cupy = import_cupy()
    a, b = (RNG.standard_normal(shape).astype(dtype) for shape in shapes)
    found = cublas.matmul(cupy.asarray(a), cupy.asarray(b)).get()
    wanted = np.matmul(a.astype("d"), b.astype("d"))
    assert found.dtype == dtype and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.gpu
def test_tf32_is_less_exact_and_can_be_switched_off():
    cupy = import_cupy()
    if cublas.load() is None:
        pytest.skip("a real GPU has TF32: on the stand-in there is no cuBLAS")
    a, b = (cupy.asarray(RNG.standard_normal((256, 256)), "f") for _ in range(2))
    exact = a.astype("d") @ b.astype("d")
    errors, before = {}, minidl.get_float32_matmul_precision()
    for precision in ("high", "highest", before):
        minidl.set_float32_matmul_precision(precision)
        errors[precision] = float(abs(cublas.matmul(a, b) - exact).max())
    assert errors["highest"] < 1e-3 and errors["high"] > 4 * errors["highest"]


@pytest.mark.gpu
def test_cupy_still_refuses_cublas_in_a_capture():
    """If this fails, CuPy allows it: cublas.py can go."""
    cupy = import_cupy()
    if hasattr(cupy, "stand_in"):
        pytest.skip("a real GPU captures")
    a = cupy.ones((8, 8), "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        a @ a
        stream.begin_capture()
        try:
            with pytest.raises(NotImplementedError, match="cuBLAS"):
                a @ a
            c = cublas.matmul(a, a)
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert (c == 8).all()
