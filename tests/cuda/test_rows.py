"""minidl/cuda/rows.py, and what all row kernels promise: the check form finds nothing at ugly
sizes, and the traffic counted is the traffic in the header of the .cu."""

import types

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import rows
from minidl.ops import cross_entropy, layer_norm, softmax
from minidl.ops.extra import quantize
from tests.kernel_arrays import normal

SHAPES = [(1, 1), (3, 33), (9, 257)]  # one element, a warp and one, a block and one


def watched(rung, kernel, grid, block, args, outputs, defines=()):
    """The report of a launch of kernel_v<rung>, or of kernel in cpu/, which found nothing."""
    name = f"{kernel}_v{rung}" if rung in (1, 2, 3) else kernel
    files = layer_norm.FILE, softmax.FILE, cross_entropy.FILE
    file = next(f for f in files if kernel.startswith(f[:-3]))
    file = f"cpu/{file}" if rung == "cpu" else file
    defines = {"T": "float", **dict(defines)}
    report = cuda.check(file, grid, block, args, name=name, defines=defines, outputs=outputs)
    assert not report.findings, str(report)
    return report


def launch_of(rung, n_rows):
    """A thread, a block or a warp for each row, in blocks of 64."""
    by_thread = rows.blocks(n_rows, 64)
    return {"cpu": by_thread, 1: by_thread, 2: n_rows, 3: rows.blocks(n_rows, 2)}[rung], 64


@pytest.mark.parametrize("rung, reads", [("cpu", 3), (1, 3), (2, 2), (3, 1)])
def test_layer_norm_forward(rung, reads):
    for n_rows, cols in SHAPES:
        x, w, b = normal((n_rows, cols), "f4", 1), normal(cols, "f4", 2), normal(cols, "f4", 3)
        y, mean, rstd = np.empty_like(x), *np.empty((2, n_rows), "f4")
        args = y, mean, rstd, x, w, b, n_rows, cols, 1e-5
        report = watched(rung, "layer_norm", *launch_of(rung, n_rows), args, "y mean rstd".split())
        assert report.ledger["x"].loads == reads * x.size
        assert report.ledger["y"].stores == x.size and report.ledger["mean"].stores == n_rows


@pytest.mark.parametrize("rung, reads", [("cpu", 2), (1, 2), (2, 2), (3, 1)])
def test_layer_norm_backward(rung, reads):
    for n_rows, cols in SHAPES:
        x, gy = normal((n_rows, cols), "f4", 1), normal((n_rows, cols), "f4", 2)
        w = np.ones(cols, "f4")
        mean, rstd, gx = x.mean(1), np.ones(n_rows, "f4"), np.empty_like(x)
        parts = np.empty((8, 2, cols), "f4")
        if rung in ("cpu", 1):
            args = gx, parts, gy, x, w, mean, rstd, n_rows, cols, 8
            report = watched(rung, "layer_norm_backward", 1, 8, args, ["gx", "parts"])
        else:
            args = gx, gy, x, w, mean, rstd, n_rows, cols
            report = watched(rung, "layer_norm_backward", *launch_of(rung, n_rows), args, ["gx"])
        assert report.ledger["x"].loads == report.ledger["gy"].loads == reads * x.size
        assert report.ledger["gx"].stores == x.size


def test_layer_norm_parameter_gradients():
    for n_rows, cols in SHAPES:
        x, gy = normal((n_rows, cols), "f4", 1), normal((n_rows, cols), "f4", 2)
        rstd, parts = np.ones(n_rows, "f4"), np.empty((8, 2 * cols), "f4")
        grid, args = (rows.blocks(cols, 64), 8), (parts, gy, x, x.mean(1), rstd, n_rows, cols)
        report = watched(None, "layer_norm_param_grads", grid, 64, args, ["parts"])
        assert report.ledger["x"].loads == report.ledger["gy"].loads == x.size
        args = np.empty(2 * cols, "f4"), parts, 2 * cols
        grid = rows.blocks(2 * cols, 64)
        report = watched(None, "layer_norm_add_eight", grid, 64, args, ["out"])
        assert report.ledger["parts"].loads == parts.size


@pytest.mark.parametrize("log, rung, reads, writes", [
    (0, "cpu", 2, 2), (1, "cpu", 3, 1),
    (0, 1, 3, 1), (0, 2, 2, 1), (0, 3, 1, 1), (1, 1, 3, 1), (1, 2, 2, 1), (1, 3, 1, 1)])
def test_softmax_forward(log, rung, reads, writes):
    for n_rows, cols in SHAPES:
        x = normal((n_rows, cols), "f4", 1)
        y = np.empty_like(x)
        args = y, x, n_rows, cols
        report = watched(rung, "softmax", *launch_of(rung, n_rows), args, ["y"], {"LOG": log})
        assert report.ledger["x"].loads == reads * x.size
        assert report.ledger["y"].stores == writes * x.size
        assert report.ledger["y"].loads == (writes - 1) * x.size


@pytest.mark.parametrize("rung, reads", [("cpu", 2), (1, 2), (2, 2), (3, 1)])
def test_softmax_backward(rung, reads):
    for n_rows, cols in SHAPES:
        y, gy = abs(normal((n_rows, cols), "f4", 1)), normal((n_rows, cols), "f4", 2)
        gx = np.empty_like(y)
        args = gx, gy, y, n_rows, cols
        report = watched(rung, "softmax_backward", *launch_of(rung, n_rows), args, ["gx"])
        assert report.ledger["y"].loads == report.ledger["gy"].loads == reads * y.size
        assert report.ledger["gx"].stores == y.size


@pytest.mark.parametrize("rung, reads", [("cpu", 2), (1, 2), (2, 1), (3, 1)])
def test_cross_entropy_both_ways(rung, reads):
    for n_rows, cols in SHAPES:
        x, target = normal((n_rows, cols), "f4", 1), np.arange(n_rows) % cols
        target[1::3] = -100
        counted = int((target >= 0).sum())
        loss, lse, g, gx = *np.empty((2, n_rows), "f4"), np.ones(n_rows, "f4"), np.empty_like(x)
        args = loss, lse, x, target, n_rows, cols, -100, 0.0
        report = watched(rung, "cross_entropy", *launch_of(rung, n_rows), args, ["loss", "lse"])
        assert report.ledger["x"].loads == counted * (reads * cols + 1)  # + 1: the target's
        args = gx, g, x, lse, target, n_rows, cols, -100, 0.0
        if rung != 3:
            grid = launch_of(rung, n_rows)
            report = watched(rung, "cross_entropy_backward", *grid, args, ["gx"])
            # v1 writes the target's element a second time
            assert report.ledger["gx"].stores == x.size + (counted if rung in ("cpu", 1) else 0)


def test_exp_below_zero_is_good_to_the_last_places(tmp_path):
    (tmp_path / "probe.cu").write_text("""#include "common.cuh"
        extern "C" __global__ void probe(float* y, const float* x, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] = exp_below_zero(x[i]);
        }""")
    x = -np.linspace(0, 86.98, 1_000_001).astype("f4")
    y = np.empty_like(x)
    cuda.kernel(tmp_path / "probe.cu", "probe")(rows.blocks(x.size, 256), 256, (y, x, x.size))
    want = np.exp(x.astype("f8"))
    assert (abs(y - want) <= 1.5 * np.spacing(want.astype("f4"))).all()
    x = np.array([0, -0.0, -87.01, -1e9, -np.inf, np.nan, 1e-6], "f4")
    y = np.empty_like(x)
    cuda.kernel(tmp_path / "probe.cu", "probe")(1, 32, (y, x, x.size))
    np.testing.assert_array_equal(y, np.array([1, 1, 0, 0, 0, np.nan, 1.000001], "f4"))


def test_lanes_of_a_gpu_keep_what_the_row_needs():
    gpu = types.SimpleNamespace()  # anything but NumPy
    single, half = np.dtype("f4"), np.dtype("f2")
    kept = {cols: rows.kept(gpu, 3, cols, single)["KEEP"] for cols in (1, 32, 33, 256, 257, 1024)}
    assert kept == {1: 1, 32: 1, 33: 2, 256: 8, 257: 16, 1024: 32}
    assert rows.kept(np, 3, 256, single) == rows.kept(gpu, 2, 256, single) == {}
    # a pack at least: 4 floats, 8 halves; a block's 256 threads
    assert [rows.kept(gpu, 4, 32, d)["KEEP"] for d in (single, half)] == [4, 8]
    assert [rows.kept(gpu, 5, c, half)["KEEP"] for c in (1032, 3072, 8192)] == [8, 16, 32]


@pytest.mark.parametrize("dtype, lengths, rungs", [
    ("f4", (1, 768, 1023, 1024, 1025, 1028, 8192, 8196), (3, 4, 3, 4, 2, 5, 5, 2)),
    ("f2", (1, 768, 772, 1024, 1028, 1032, 8192, 8200), (3, 4, 3, 4, 2, 5, 5, 2)),
])
def test_rows_that_begin_at_multiples_of_16_bytes_take_packs(dtype, lengths, rungs):
    gpu = types.SimpleNamespace()
    assert tuple(rows.best_rung(gpu, c, np.dtype(dtype)) for c in lengths) == rungs
    assert rows.best_rung(np, 768, np.dtype(dtype)) == "cpu"


@pytest.mark.parametrize("shape, words", [
    ((2**27, 8), "softmax: wanted at most 67108864 rows .* got 134217728 rows of 8"),
    ((2, 2**31 - 5), "got 2 rows of 2147483643"),
])
def test_rows_that_a_gpu_cannot_count_are_refused(shape, words):
    """Kernels count threads, 32 a row, and columns in an int; nothing is allocated here."""
    huge = types.SimpleNamespace(shape=shape, dtype=np.dtype("f4"))
    with pytest.raises(ValueError, match=words):
        rows.launch("softmax.cu", "softmax", huge, ())
    with pytest.raises(ValueError, match="quantize: "):
        quantize.launch(types.SimpleNamespace(), "quantize", types.SimpleNamespace(size=1),
                        (None, None, None, *shape, 1))
