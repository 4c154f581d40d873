"""CUDA's further words give what NumPy and CUDA's own definitions give: bytes, halves, bfloat16."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

import minidl.cuda as cuda

TEXT = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
typedef __nv_bfloat16 bf16;

extern "C" __global__ void bits(unsigned* y, const unsigned* x, int n) {
  int i = threadIdx.x;
  y[i] = __byte_perm(x[i], x[(i + 1) % n], 0x3276);
  y[n + i] = __funnelshift_l(x[i], x[(i + 1) % n], i);
  y[2 * n + i] = __funnelshift_r(x[i], x[(i + 1) % n], i);
  y[3 * n + i] = __funnelshift_lc(x[i], x[(i + 1) % n], 40);
  y[4 * n + i] = __byte_perm(x[i], 0, 0x888b);
}
extern "C" __global__ void round_trip(bf16* y, const float* x, const bf16* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16(x[i] + __bfloat162float(z[i]));
}
extern "C" __global__ void pairs(__half2* y, const half2* x, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i] / __halves2half2(__float2half(2.0f), __float2half(4.0f));
}
extern "C" __global__ void add_halves(__half* y, const __half* x, __half2* z) {
  atomicAdd(y, x[threadIdx.x]);
  atomicAdd(z, __half2half2(x[threadIdx.x]));
}
extern "C" __global__ void copies(float* y, const float* x) {
  float row[4];
  memset(row, 0, sizeof row);
  memcpy(row, x + 3 * threadIdx.x, 3 * sizeof(float));
  memcpy(y + 4 * threadIdx.x, row, sizeof row);
}
extern "C" __global__ void match(unsigned* y, const int* x) {
  int all;
  y[threadIdx.x] = __match_any_sync(0xffffffffu, x[threadIdx.x]);
  y[32 + threadIdx.x] = __match_all_sync(0xffffffffu, x[threadIdx.x], &all) + all;
}
extern "C" __global__ void count_group(int* y, const int* x) {
  if (x[threadIdx.x] > 0) {
    cg::coalesced_group g = cg::coalesced_threads();
    if (g.thread_rank() == 0) atomicAdd(y, (int)g.size());
  }
}
extern "C" __global__ void times(long long* y) {
  long long start = clock64();
  __nanosleep(10);
  y[threadIdx.x] = clock64() > start;
}
struct Three { float a, b, c; __device__ Three(float x) : a(x), b(2 * x), c(3 * x) {} };
extern "C" __global__ void placed(float* y) {
  __shared__ float memory[3 * 8];
  Three* three = new (memory + 3 * threadIdx.x) Three(threadIdx.x);
  half2 both(0.5f, 2.0f);
  __nv_bfloat162 more(4.0f, 8.0f);
  y[threadIdx.x] = three->b + three->c + (float)both.x * (float)both.y * (float)more.y;
}
struct Size { int rows; float by; };
extern "C" __global__ void scaled(float* y, Size s, float2 more) {
  if (threadIdx.x < s.rows) y[threadIdx.x] = s.by + more.x * more.y;
}
__constant__ float factors[4] = {1, 2, 3, 4};
__device__ int calls[2][3];
extern "C" __global__ void use_constants(float* y) {
  y[threadIdx.x] = factors[threadIdx.x];
  atomicAdd(&calls[1][2], 1);
}
extern "C" __global__ void reset_calls(int to) { calls[1][2] = to; }
extern "C" __global__ void unknown_word(unsigned* y) { y[0] = __vabsdiffu4(y[1], y[2]); }
extern "C" __global__ void two_kinds(float* y) {
  extern __shared__ float words[];
  extern __shared__ int numbers[];
  words[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = numbers[31 - threadIdx.x] == 0x3f800000;
}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "words.cu"
    path.write_text(TEXT)
    return path


@pytest.fixture(params=["fast", "check"])
def launch(request, file):
    def launch(name, grid, block, args, **options):
        if request.param == "fast":
            return cuda.kernel(file, name)(grid, block, args, **options)
        report = cuda.check(file, grid, block, args, name=name, **options)
        assert not report.errors, str(report)
    return launch


def test_bytes_and_funnels(launch):
    n = 32
    x = np.random.default_rng(0).integers(0, 2**32, n, dtype=np.uint32)
    y = np.zeros((5, n), np.uint32)
    launch("bits", 1, n, (y, x, n))
    hi, k = np.roll(x, -1), np.arange(n, dtype=np.uint64)
    both = hi.astype(np.uint64) << np.uint64(32) | x
    by = both.view(np.uint8).reshape(n, 8)  # selectors 6 7 2 3, from the lowest byte on
    np.testing.assert_array_equal(y[0], by[:, [6, 7, 2, 3]].copy().view(np.uint32)[:, 0])
    np.testing.assert_array_equal(y[1], (both << k >> np.uint64(32)).astype(np.uint32))
    np.testing.assert_array_equal(y[2], (both >> k).astype(np.uint32))
    np.testing.assert_array_equal(y[3], x)
    low, high = (np.where(x >> np.uint32(s) & 1, 0xff, 0) for s in (7, 31))
    np.testing.assert_array_equal(y[4], high | low << 8 | low << 16 | low << 24)


def test_bfloat16_rounds_as_ml_dtypes(launch):
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    x[:4] = np.inf, -np.inf, 3.4e38, 1e-40
    z, y = np.ones(500, ml_dtypes.bfloat16), np.zeros(500, ml_dtypes.bfloat16)
    launch("round_trip", 2, 256, (y, x, z, 500))
    np.testing.assert_array_equal(y, (x + 1).astype(ml_dtypes.bfloat16))
    as_bits = np.zeros(500, np.uint16)
    launch("round_trip", 2, 256, (as_bits, x, z.view(np.uint16), 500))
    np.testing.assert_array_equal(as_bits, y.view(np.uint16))


def test_halves(launch):
    x, y = np.arange(64, dtype=np.float16), np.zeros(64, np.float16)
    launch("pairs", 1, 32, (y, x, 32))
    np.testing.assert_array_equal(y.reshape(32, 2), x.reshape(32, 2) / np.float16([2, 4]))
    total, both = np.zeros(1, np.float16), np.zeros(2, np.float16)
    launch("add_halves", 1, 32, (total, np.ones(32, np.float16), both))
    assert total == 32 and (both == 32).all()


def test_memory_in_one_piece(launch):
    x, y = np.arange(96, dtype=np.float32), np.full((32, 4), np.nan, np.float32)
    launch("copies", 1, 32, (y, x))
    np.testing.assert_array_equal(y, np.pad(x.reshape(32, 3), ((0, 0), (0, 1))))


def test_lanes_with_the_same_value(launch):
    x, y = (np.arange(32) % 3).astype(np.int32), np.zeros((2, 32), np.uint32)
    launch("match", 1, 32, (y, x))
    want = [sum(1 << k for k in range(32) if x[k] == v) for v in x]
    np.testing.assert_array_equal(y[0], want)
    assert not y[1].any()


def test_a_group_of_those_that_are_there(launch):
    y = np.zeros(1, np.int32)
    launch("count_group", 1, 64, (y, (np.arange(64) % 4).astype(np.int32)))
    assert y == 48


def test_clocks_go_on(launch):
    y = np.zeros(4, np.int64)
    launch("times", 1, 4, (y,))
    assert y.all()


def test_dynamic_memory_under_two_names(launch):
    y = np.zeros(32, np.float32)
    launch("two_kinds", 1, 32, (y,), shared_mem=128)
    assert y.all()


def test_objects_in_given_memory_and_pairs_by_constructor(launch):
    y = np.zeros(8, np.float32)
    launch("placed", 1, 8, (y,))
    np.testing.assert_array_equal(y, 5 * np.arange(8) + 8)


def test_structs_by_value(launch):
    class Size(ctypes.Structure):
        _fields_ = [("rows", ctypes.c_int), ("by", ctypes.c_float)]

    record = np.array((3, 0.5), [("rows", "i4"), ("by", "f4")])
    for size in (record, record[()], Size(3, 0.5)):
        y = np.zeros(8, np.float32)
        launch("scaled", 1, 8, (y, size, np.array([2, 4], np.float32)))
        np.testing.assert_array_equal(y, [8.5, 8.5, 8.5, 0, 0, 0, 0, 0])


def test_a_struct_of_another_size_is_refused(file):
    k = cuda.kernel(file, "scaled")
    two = np.array([2, 4], np.float32)
    with pytest.raises(ValueError, match="8 bytes in C; got 12 bytes.*align=True"):
        k(1, 8, (np.zeros(8, np.float32), np.array((3, 0.5, 1), "i4,f4,f4"), two))
    with pytest.raises(TypeError, match="Size by value: pass a record"):
        k(1, 8, (np.zeros(8, np.float32), 3, two))


def test_variables_are_read_written_and_shared_by_kernels(file):
    k, y = cuda.kernel(file, "use_constants"), np.zeros(4, np.float32)
    cuda.kernel(file, "reset_calls")(1, 1, (5,))
    k(1, 4, (y,))
    np.testing.assert_array_equal(y, [1, 2, 3, 4])
    assert k.get_global("calls").shape == (2, 3) and k.get_global("calls")[1, 2] == 9
    k.get_global("factors")[:] = 7
    k(1, 4, (y,))
    np.testing.assert_array_equal(y, [7] * 4)
    with pytest.raises(cuda.KernelError, match="no variable 'other'; it uses: factors, calls"):
        k.get_global("other")
    k.get_global("factors")[:] = [1, 2, 3, 4]


def test_variables_start_the_same_in_every_order_and_keep_one_launch(file):
    """Red before: three orders of threads counted three times."""
    k, y = cuda.kernel(file, "use_constants", form="check"), np.zeros(4, np.float32)
    cuda.kernel(file, "reset_calls", form="check")(1, 1, (0,))
    for n in (4, 8):
        k(1, 4, (y,))
        assert k.get_global("calls")[1, 2] == n


def test_an_unknown_word_is_not_supported_and_no_guess_is_made(file):
    with pytest.raises(cuda.KernelError) as caught:
        cuda.kernel(file, "unknown_word")(1, 1, (np.zeros(3, np.uint32),))
    assert "__vabsdiffu4 is not supported by the CPU runner" in str(caught.value)
    assert "did you mean" not in str(caught.value)
