"""Kernels written in the idioms of GPU code (idioms.cu) compute on the CPU what NumPy computes,
whatever the form and the order of threads and blocks: ascending, descending, shuffled. Where
threads do not race, all orders give the same bits."""

from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda

FILE = Path(__file__).parent / "idioms.cu"
WAYS = {
    "auto": {},
    "fibre": {"form": "fibre"},
    "descending": {"order": "descending"},
    "shuffled": {"order": 7},
}


@pytest.fixture(params=WAYS)
def launch(request):
    """launch(name, grid, block, *args): run the kernel in one of the WAYS."""

    def launch(name, grid, block, *args, shared_mem=0):
        kernel = cuda.kernel(FILE, name, **WAYS[request.param])
        kernel(grid, block, args, shared_mem=shared_mem)

    return launch


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def blocks(n, size):
    return -(-n // size)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 5000])
def test_kernels_made_by_a_macro(launch, rng, n):
    x, y, z = floats(rng, n), floats(rng, n), np.full(n + 8, 7, np.float32)
    launch("binary_mul", blocks(n, 256), 256, x, y, z, n)
    np.testing.assert_array_equal(z[:n], x * y)
    assert (z[n:] == 7).all()  # nothing beyond the guard
    launch("binary_hypot", blocks(n, 256), 256, x, y, z, n)
    # a*a + b*b may be contracted to a fused multiply-add: one rounding less
    np.testing.assert_allclose(z[:n], np.hypot(x, y), rtol=3e-7)


@pytest.mark.parametrize("n, grid", [(1, 1), (1000, 1), (1000, 3), (5000, 64)])
def test_grid_stride_loop_covers_everything_for_any_grid(launch, rng, n, grid):
    x, y = floats(rng, n), floats(rng, n + 3)
    want = np.concatenate([(np.float64(2.5) * x + y[:n]).astype(np.float32), y[n:]])
    launch("saxpy_stride", grid, 64, 2.5, x, y, n)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-7)
    assert (y[n:] == want[n:]).all()


def test_device_function_that_reads_the_thread_index(launch, rng):
    x, y = floats(rng, 700), np.zeros(700, np.float32)
    launch("helper_index", 3, 256, y, x, 700)
    np.testing.assert_array_equal(y, 2 * x)


def test_two_dimensional_grid(launch, rng):
    image = rng.integers(0, 256, (45, 67)).astype(np.uint8)
    out = np.zeros_like(image)
    launch("image_blur", (blocks(67, 16), blocks(45, 8)), (16, 8), image, out, 67, 45)
    padded, ones = np.pad(image.astype(int), 1), np.pad(np.ones((45, 67), int), 1)
    shifts = [np.s_[r : r + 45, c : c + 67] for r in range(3) for c in range(3)]
    np.testing.assert_array_equal(
        out, sum(padded[s] for s in shifts) // sum(ones[s] for s in shifts)
    )


def test_three_dimensional_grid(launch):
    nz, ny, nx = 5, 6, 9
    out = np.full((nz, ny, nx), -1, np.int32)
    launch("volume_index", (3, 2, 3), (4, 4, 2), out, nx, ny, nz)
    z, y, x = np.indices(out.shape)
    np.testing.assert_array_equal(out, x + 100 * y + 10000 * z)


def test_float4_casts(launch, rng):
    a, b, c = floats(rng, 400), floats(rng, 400), np.zeros(400, np.float32)
    launch("add_float4", 2, 64, a, b, c, 400)
    np.testing.assert_array_equal(c, a + b)


def test_constant_memory_and_unrolled_loop(launch, rng):
    x, y = floats(rng, 300), np.zeros(300, np.float32)
    launch("convolve", 2, 256, x, y, 300)
    want = np.convolve(x.astype(np.float64), [1, 4, 6, 4, 1], mode="same")
    np.testing.assert_allclose(y, want, atol=1e-5)


@pytest.mark.parametrize(
    "name, dtype",
    [("sum_static<float, 128>", "f4"), ("sum_static<double>", "f8"), ("sum_static<int,64>", "i4")],
)
def test_block_sum_by_a_template(launch, rng, name, dtype):
    n, size = 1000, 64 if "64" in name else 128
    x = rng.integers(-50, 50, n).astype(dtype)
    partial = np.zeros(blocks(n, size), dtype)
    launch(name, len(partial), size, x, partial, n)
    padded = np.pad(x, (0, len(partial) * size - n)).reshape(-1, size)
    np.testing.assert_array_equal(partial, padded.sum(1))


@pytest.mark.parametrize("block", [32, 64, 256])
def test_block_sum_in_dynamic_shared_memory_and_shuffles(launch, rng, block):
    n = 2000
    x = rng.integers(-50, 50, n).astype(
        np.float32
    )  # integers: every order of adding gives the same sum
    partial = np.zeros(blocks(n, 2 * block), np.float32)
    launch("sum_dynamic", len(partial), block, x, partial, n, shared_mem=4 * block)
    padded = np.pad(x, (0, len(partial) * 2 * block - n)).reshape(len(partial), -1)
    np.testing.assert_array_equal(partial, padded.sum(1))


def test_warp_sums_join_by_an_atomic(launch, rng):
    x, total = rng.integers(-50, 50, 3000).astype(np.float32), np.zeros(1)
    launch("sum_atomic", 4, 128, x, total, 3000)
    assert total[0] == x.sum()


def test_histograms(launch, rng):
    data = rng.integers(0, 256, 5000).astype(np.uint8)
    bins = np.zeros(256, np.uint32)
    launch("histogram", 3, 96, data, bins, 5000)
    np.testing.assert_array_equal(bins, np.bincount(data, minlength=256))
    few, bins = (data % 8).astype(np.int32), np.zeros(8, np.int32)
    launch("histogram_global", 20, 256, few, bins, 5000)
    np.testing.assert_array_equal(bins, np.bincount(few))


@pytest.mark.parametrize("height, width", [(32, 32), (33, 65), (1, 40)])
def test_transpose_through_a_padded_tile(launch, rng, height, width):
    x, out = floats(rng, height, width), np.zeros((width, height), np.float32)
    launch("transpose", (blocks(width, 32), blocks(height, 32)), (32, 8), out, x, width, height)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize("n", [1, 31, 100, 128])
def test_scans(launch, rng, n):
    x, out = rng.integers(-9, 9, n).astype(np.int32), np.zeros(n, np.int32)
    launch("scan", 1, 128, x, out, n, shared_mem=2 * 128 * 4)
    np.testing.assert_array_equal(out, np.cumsum(x))
    out[:] = 0
    launch("scan_warps", 1, 128, x, out, n)
    np.testing.assert_array_equal(out, np.cumsum(x))


@pytest.mark.parametrize("m, n, k", [(16, 16, 16), (17, 33, 40), (1, 5, 3)])
def test_tiled_matmul(launch, rng, m, n, k):
    a, b, c = floats(rng, m, k), floats(rng, k, n), np.zeros((m, n), np.float32)
    launch("matmul_tiled", (blocks(n, 16), blocks(m, 16)), (16, 16), a, b, c, m, n, k)
    # k products of unit variance, each rounded: error below k * 2^-24 * a few
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, atol=1e-5)


def test_softmax_with_cooperative_groups_and_warps_that_return(launch, rng):
    x, out = floats(rng, 10, 77), np.zeros((10, 77), np.float32)
    launch("softmax_cg", 3, 128, x, out, 10, 77)  # 12 warps, 2 of them without a row
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-6)


def test_votes_of_warps_and_blocks(launch, rng):
    x = rng.integers(-99, 120, 64).astype(np.int32)
    x[32:] = np.minimum(x[32:], 50)  # only the first warp has a value above 100
    x[5] = 110
    out = np.zeros(64, np.int32)
    launch("votes", 1, 64, x, out)
    warps = x.reshape(2, 32)
    per_warp = (warps > 0).sum(1) + 100 * (warps > 100).any(1) + 200 * (warps > -100).all(1)
    block = 1000 * (x > 0).sum() + 1000000 * (x > -100).all() + 2000000 * (x > 100).any()
    np.testing.assert_array_equal(out, np.repeat(per_warp, 32) + block)


def test_parts_of_a_warp_shuffle_under_their_own_masks(launch):
    out = np.zeros(32, np.int32)
    launch("half_warps", 1, 32, out)
    lane = np.arange(32)
    np.testing.assert_array_equal(out, np.where(lane < 16, 3, 20) + 100 * (lane // 8 * 8 + 1))


@pytest.mark.parametrize("width", [2, 8, 32])
def test_shuffles_stay_within_their_segment(launch, width):
    out = np.zeros(64, np.int32)
    launch("segments", 1, 64, out, width)
    lane = np.arange(64) % 32
    first = lane // width * width
    up = np.where(lane - 3 >= first, lane - 3, lane)
    down = np.where(lane + 2 < first + width, lane + 2, lane)
    np.testing.assert_array_equal(
        out, up + 100 * down + 10000 * (first + 5 % width) + 1000000 * (lane ^ 1)
    )


def test_last_block_sums_what_all_have_written(launch, rng):
    x = rng.integers(0, 9, 40).astype(np.float32)
    partial, ticket, total = (
        np.zeros(40, np.float32),
        np.zeros(1, np.uint32),
        np.zeros(1, np.float32),
    )
    launch("last_block", 40, 32, x, partial, ticket, total)
    assert total[0] == x.sum()


def test_spin_lock_is_released(launch):
    lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int32)
    launch("spin_lock", 5, 128, lock, counter)
    assert counter[0] == 20 and lock[0] == 0


def test_functor_as_a_template_argument(launch, rng):
    x, y = floats(rng, 1000), np.zeros(1000, np.float32)
    launch("map<float, Square>", 2, 64, y, x, 1000)
    np.testing.assert_array_equal(y, x * x)


def test_table_of_pointers(launch, rng):
    arrays = [floats(rng, n) for n in (5, 300, 77)]
    want = [a * np.float32(0.5) for a in arrays]
    table = np.array([a.ctypes.data for a in arrays], np.uint64)
    sizes = np.array([len(a) for a in arrays], np.int32)
    launch("pointers", (2, 3), 256, table, sizes, 0.5)
    for got, wanted in zip(arrays, want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_architecture_is_known_to_the_preprocessor(launch):
    out = np.zeros(32, np.int32)
    launch("needs_volta", 1, 32, out)
    assert (out == 5).all()


@pytest.mark.parametrize("working", [1, 2, 3, 4])
def test_a_barrier_does_not_wait_for_warps_that_have_returned(launch, working):
    y, n = np.zeros(128, np.int32), 32 * working
    launch("warps_leave", 1, 128, y, working)
    want = np.zeros(128, np.int32)
    t = np.flatnonzero((np.arange(128) < n) & (np.arange(128) // 32 != 1))
    want[t] = 1000 + 100 * (len(t) // 32) + n - 1 - t
    np.testing.assert_array_equal(y, want)
