"""Features of CUDA (features.cu) compute on the CPU what they say, in every order of threads and
blocks, with no finding under watch; and NVIDIA's compiler takes the same file."""

from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import nvrtc

FILE = Path(__file__).parent / "features.cu"
GROUPS = Path(__file__).parent / "features_groups.cu"
WAYS = {"auto": {}, "fibre": {"form": "fibre"}, "descending": {"order": "descending"},
        "shuffled": {"order": 7}, "check": None}


@pytest.fixture(params=WAYS)
def launch(request):
    """launch(name, grid, block, *args): run the kernel in one of the WAYS."""
    def launch(name, grid, block, *args, shared_mem=0):
        in_groups = name.split("<")[0] in ("thread_groups", "aggregated", "large_tiles")
        file = GROUPS if in_groups else FILE
        if request.param == "check":
            report = cuda.check(file, grid, block, args, name=name, shared_mem=shared_mem)
            assert not report.errors, str(report)
            # places come in the order of threads
            assert not report.warnings or name == "aggregated", str(report)
        else:
            kernel = cuda.kernel(file, name, **WAYS[request.param])
            kernel(grid, block, args, shared_mem=shared_mem)

    return launch


T = np.arange(64)
NUMBERS = np.random.default_rng(3).integers(-20, 20, 128).astype(np.int32)


def floats(n):
    return np.random.default_rng(4).standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("c_type, dtype", [("float", "f4"), ("double", "f8"), ("short", "i2")])
def test_dynamic_memory_in_a_member_function(launch, c_type, dtype):
    y, x = np.zeros(64, dtype), T.astype(dtype)
    launch(f"reversed<{c_type}>", 1, 64, y, x, shared_mem=512)
    np.testing.assert_array_equal(y, x[::-1])


def test_a_struct_that_knows_its_dynamic_memory(launch):
    y = np.zeros(64, np.int32)
    launch("pushes", 1, 64, y, NUMBERS[:64], shared_mem=512)
    assert (y == np.maximum(NUMBERS[:64], 0).sum()).all()


def test_structs_in_dynamic_memory(launch):
    x, y = floats(48), np.zeros(48, np.float32)
    launch("struct_parts", 1, 48, y, x, 48, shared_mem=16 * 48)
    want = x + np.roll(x, 1) * 2 * np.roll(x, -1)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)  # one rounding less by an fma


def test_static_and_volatile_shared_variables(launch):
    y = np.zeros(64, np.int32)
    launch("volatile_tile", 1, 64, y)
    np.testing.assert_array_equal(y, 63 - T + 2 * T + np.where(T % 2, 4, 3) + 5)


@pytest.mark.parametrize("n, grid", [(1, 1), (100, 1), (1000, 3)])
def test_static_constants_and_a_counter(launch, n, grid):
    x, y = floats(n), np.zeros(n, np.float32)
    launch("stencil", grid, 64, y, x, n)
    padded = np.pad(x, 1)
    want = 2 * (padded[:-2] / 4 + padded[1:-1] / 2 + padded[2:] / 4) + 0.5 + np.arange(n) % 2
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_function_pointers(launch):
    x, y = floats(64), np.zeros(64, np.float32)
    launch("pointers_to_functions", 1, 64, y, x)
    np.testing.assert_allclose(y, np.where(T % 2, -x, x * x) + x**4, rtol=1e-5, atol=1e-6)


def test_operators_of_a_class(launch):
    y = np.zeros(64, np.int32)
    launch("operators", 1, 64, y)
    np.testing.assert_array_equal(y, 10 * (T + 2) + 1000 * (T + 2 > 4))


@pytest.mark.parametrize("name, power", [("powers<float>", 3), ("powers<float, 5>", 5)])
def test_recursive_templates_and_lambdas(launch, name, power):
    x, y = floats(64), np.zeros(64, np.float32)
    launch(name, 1, 64, y, x)
    np.testing.assert_allclose(y, x.astype("f8") ** power + 1, rtol=1e-5, atol=1e-6)


def test_recursion(launch):
    y = np.zeros(64, np.int32)
    launch("recursion", 1, 64, y)
    fibonacci = [0, 1]
    while len(fibonacci) < 12:
        fibonacci.append(sum(fibonacci[-2:]))
    np.testing.assert_array_equal(y, np.array(fibonacci)[T % 12])


def test_groups_of_any_size(launch):
    y = np.zeros(96, np.int32)
    launch("thread_groups", 1, 128, y, NUMBERS)
    assert y[0] == NUMBERS.sum()
    np.testing.assert_array_equal(y[1:9], NUMBERS.reshape(8, 16).sum(1))
    np.testing.assert_array_equal(y[64:80], NUMBERS.reshape(16, 8).sum(1))


@pytest.mark.parametrize("n", [64, 128, 256])
def test_tiles_larger_than_a_warp(launch, n):
    x, y = floats(512), np.zeros((2, 4, 256), np.float32)
    z = np.zeros(512, np.int32)
    launch(f"large_tiles<{n}>", 2, 256, y, z, x)
    tiles, mirrored, sums, tops, far = x.reshape(-1, n), *np.moveaxis(y, 1, 0)
    np.testing.assert_array_equal(mirrored.reshape(-1, n), tiles[:, ::-1])
    assert (sums.reshape(-1, n) == sums.reshape(-1, n)[:, :1]).all(), "the same bits"
    # 256 numbers of about 1: at most 255 roundings of sums below 64
    np.testing.assert_allclose(sums.reshape(-1, n)[:, 0], tiles.sum(1), rtol=0, atol=255 * 2**-19)
    np.testing.assert_array_equal(tops.reshape(-1, n // 2)[:, 0], x.reshape(-1, n // 2).max(1))
    assert (tops.reshape(-1, n // 2) == tops.reshape(-1, n // 2)[:, :1]).all()
    assert (far.reshape(-1, n) == tiles[:, 37:38]).all()
    number = np.arange(512)
    want = (1000 * (number % 256 // n) + 100 * (number % n // (n // 2))
            + (10 * (tiles > 2).any(1) + (tiles > -2).all(1)).repeat(n))
    np.testing.assert_array_equal(z, want)


NO_TILE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void tiles(int* y) {
  __shared__ cg::block_tile_memory<128> memory;
  auto block = cg::this_thread_block(MEMORY);
  auto tile = cg::tiled_partition<64>(block);
  if (threadIdx.x / 32 != ABSENT) tile.sync();
  y[threadIdx.x] = 1;
}"""


@pytest.mark.parametrize("block, memory, absent, said", [
    (128, "", 9, "line 7 of .*: a tile of more than 32 threads needs memory: __shared__ cg::bloc"),
    (256, "memory", 9, "line 6 of .*: the block has more threads than its block_tile_memory is"),
    (96, "memory", 9, "line 7 of .*: a block, or a tile, is divided into large tiles without a"),
    (128, "memory", 3, "deadlock: 96 threads returned at the end of the kernel, 32 threads wait in "
                       "a tile at line 8 of tiles.cu. Every thread of a tile must reach its sync"),
    (64, "memory", 1, "deadlock: 32 threads wait in a tile at line 8 .*, 32 threads returned at")])
def test_a_large_tile_that_cannot_be_is_a_sentence(tmp_path, block, memory, absent, said):
    file = tmp_path / "tiles.cu"
    file.write_text(NO_TILE.replace("MEMORY", memory).replace("ABSENT", str(absent)))
    with pytest.raises(cuda.KernelError, match=said):
        cuda.kernel(file, "tiles")(1, block, (np.zeros(block, np.int32),))
    assert cuda.check(file, 1, block, (np.zeros(block, np.int32),), name="tiles").errors


@pytest.mark.parametrize("far, races", [(1, False), (32, False), (64, True), (128, True)])
def test_a_tile_orders_its_own_threads_alone(tmp_path, far, races):
    """The check form: what thread t reads, thread t ^ far wrote before the sync of both tiles."""
    file = tmp_path / "far.cu"
    file.write_text("""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void far(int* y, int distance) {
  __shared__ cg::block_tile_memory<256> memory;
  __shared__ int row[256];
  auto block = cg::this_thread_block(memory);
  auto tile = cg::tiled_partition<64>(block);
  int t = threadIdx.x;
  row[t] = t;
  cg::sync(tile);
  y[t] = row[t ^ distance];
}""")
    y = np.zeros(256, np.int32)
    found = cuda.check(file, 1, 256, (y, far), name="far").errors
    assert {(f.kind, f.line) for f in found} == ({("data race", 12)} if races else set())


def test_votes(launch):
    y = np.zeros(64, np.uint32)
    x = np.abs(NUMBERS[:64]) * np.where(np.random.default_rng(1).random(64) < 0.5, -1, 1)
    x = x.astype(np.int32)
    launch("votes", 1, 64, y, x)
    warps = x.reshape(2, 32)
    first = warps[range(2), (warps > 0).argmax(1)][:, None] * 100
    want = first + np.cumsum(warps > 0, 1) - (warps > 0) + 10000 * (warps > 5).any(1)[:, None]
    np.testing.assert_array_equal(y, want.ravel())


def test_a_scan_over_a_block(launch):
    y = np.zeros(128, np.int32)
    launch("scan", 1, 128, y, NUMBERS)
    np.testing.assert_array_equal(y, NUMBERS.cumsum())


def test_aggregated_atomics(launch):
    y, count = np.zeros(128, np.int32), np.zeros(1, np.int32)
    launch("aggregated", 1, 128, count, y, NUMBERS)
    np.testing.assert_array_equal(np.sort(y[: count[0]]), np.sort(NUMBERS[NUMBERS > 0]))


def test_atomics(launch):
    x = np.abs(NUMBERS)
    y = np.array([0, 0, -9, 99, -1, 0, 0, 0], np.int32)
    u, w, f = np.zeros(4, np.uint32), np.zeros(2, np.uint64), np.zeros(1, np.float32)
    launch("all_atomics", 1, 128, y, u, w, f, x)
    bits = np.bitwise_or.reduce(1 << x % 31)
    want = [x.sum(), -x.sum(), x.max(), x.min(), ~bits, bits, np.bitwise_xor.reduce(1 << x % 31),
            x.sum()]
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(u, [128 % 10, (10 - 128 % 10) % 10, 256, x.max() + 1])
    assert w[0] == 128 << 33 and w[1] == int(x.max()) << 40 and f[0] == 64


def test_vector_types(launch):
    x = floats(400).reshape(100, 4)
    b = np.random.default_rng(5).integers(0, 256, (100, 4)).astype(np.uint8)
    y = np.zeros_like(x)
    launch("vectors", 2, 64, y, x, b, 100)
    v, c = x.astype("f8"), b.astype("f8")
    want = [v[:, 3] * c[:, 3] + 1, v[:, 2] * c[:, 2], v[:, 1] - c[:, 1], v[:, 0] + c[:, 0]]
    np.testing.assert_allclose(y, np.stack(want, 1), rtol=1e-6, atol=1e-6)


def test_pairs_of_halves(launch):
    x, y = floats(128).astype(np.float16), np.zeros(128, np.float16)
    launch("half_pairs", 1, 64, y, x, 0.5)
    squares = (x * x).astype("f8")  # rounded to a half before the sum
    np.testing.assert_array_equal(y, (x.astype("f8") * 0.5 + squares).astype(np.float16))


def test_time_goes_on(launch):
    y, t = np.zeros(64, np.int64), np.zeros(64, np.int64)
    launch("timed", 1, 64, y, t)
    assert y.all() and t.all()


def test_print(launch, capfd):
    launch("printed", 1, 32, np.array([7, 3], np.int32))
    assert "block 0: 7 1.50 end\n" in capfd.readouterr().out


def test_a_struct_by_value_and_a_grid_stride_loop(launch):
    x, y = floats(300), np.zeros(300, np.float32)
    s = np.array((2.5, 7), np.dtype([("factor", "f4"), ("shift", "i4")]))
    launch("settings", 2, 128, y, x, s, 300)
    np.testing.assert_array_equal(y, np.roll(x, -7) * np.float32(2.5))


def test_bits(launch):
    x = np.random.default_rng(6).integers(0, 2**32, 64).astype(np.uint32)
    y = np.zeros(64, np.uint32)
    launch("bits", 1, 64, y, x)
    as_float = (x % 1000).astype(np.float32).view(np.uint32)
    for v, f, got in zip(map(int, x), map(int, as_float), y, strict=True):
        want = min(v % 2**24 * 3, 2**30) ^ int(f"{v:032b}"[::-1], 2) ^ f ^ f >> 24
        assert got == want ^ 32 - v.bit_length()


@pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))
@pytest.mark.parametrize("file", [FILE, GROUPS], ids=["features", "groups"])
def test_nvrtc_takes_the_file(file):
    assert nvrtc.check(file)


def test_python_writes_constants_but_not_what_is_const():
    kernel = cuda.kernel(FILE, "stencil")
    weights, scale, halves = map(kernel.get_global, ("weights", "scale", "halves"))
    before, y = weights.copy(), np.zeros(4, np.float32)
    weights[:] = [0, 1, 0]
    kernel(1, 32, (y, np.ones(4, np.float32), 4))
    weights[:] = before
    np.testing.assert_array_equal(y, [2.5, 3.5, 2.5, 3.5])
    for array in scale, halves:  # in memory that the system protects: a write would end Python
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
