"""kernels/common.cuh: random numbers equal to minidl/random.py's to the bit, sums over warps and
blocks, casts."""

from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.random import Generator

FILE = Path(__file__).parent / "common_probe.cu"


@pytest.mark.parametrize("name", ["draw", "draw_eight"])
@pytest.mark.parametrize(
    "seed, stream, counter, n",
    [(0, 0, 0, 1), (1, 2, 3, 8), (2**64 - 1, 2**63, 10**15, 1001), (7, 0, 2**32 - 1, 65)],
)
def test_random_bits_are_those_of_the_generator(name, seed, stream, counter, n):
    generator = Generator(seed, stream)
    generator.counter = counter
    out = np.zeros(n + 1, np.uint32)
    cuda.kernel(FILE, name)(-(-n // 64), 64, (out, seed, stream, counter, n))
    np.testing.assert_array_equal(out[:n], generator.bits(n))
    assert out[n] == 0


def test_uniform_numbers_are_those_of_the_generator():
    out = np.zeros(500, np.float32)
    cuda.kernel(FILE, "draw_uniform")(2, 256, (out, 11, 3, 0, 500))
    np.testing.assert_array_equal(out, Generator(11, 3).uniform(500))


@pytest.mark.parametrize("order", ["ascending", "descending", 5])
@pytest.mark.parametrize("cols", [32, 96, 1024])
def test_block_sum_and_max_reach_every_thread(cols, order):
    # whole numbers, so sums are exact; a row of negative ones, whose maximum is not 0
    x = np.random.default_rng(3).integers(-99, 99, (3, cols)).astype(np.float32)
    x[1] -= 200
    total, top = np.zeros_like(x), np.zeros_like(x)
    cuda.kernel(FILE, "sums", order=order)(3, cols, (total, top, x, cols))
    np.testing.assert_array_equal(total, np.broadcast_to(x.sum(1, keepdims=True), x.shape))
    np.testing.assert_array_equal(top, np.broadcast_to(x.max(1, keepdims=True), x.shape))


@pytest.mark.parametrize("element, dtype", [("float", "f4"), ("double", "f8"), ("__half", "f2")])
def test_element_type_comes_from_the_command_line(element, dtype):
    x = np.random.default_rng(4).standard_normal(100).astype(dtype)
    out = np.zeros_like(x)
    cuda.kernel(FILE, "cast", defines={"T": element})(1, 128, (out, x, 100))
    np.testing.assert_array_equal(
        out, (x.astype("f8" if dtype == "f8" else "f4") * 3).astype(dtype)
    )


@pytest.mark.parametrize("rows, cols", [(1, 1), (7, 100), (300, 33)])
def test_a_thread_per_row_sums_with_a_vector_loop(tmp_path, rows, cols):
    (tmp_path / "probe.cu").write_text("""#include "cpu/loops.cuh"
        extern "C" __global__ void row_sums(float* out, const float* x, int rows, int cols) {
          int row = blockIdx.x * blockDim.x + threadIdx.x;
          if (row < rows) {
            float s = 0;
            SIMD_SUM(s)
            for (int c = 0; c < cols; ++c) s += x[row * cols + c];
            out[row] = s;
          }
        }""")
    x = np.random.default_rng(5).integers(-99, 99, (rows, cols)).astype(np.float32)
    out = np.zeros(rows, np.float32)
    cuda.kernel(tmp_path / "probe.cu", "row_sums")(-(-rows // 128), 128, (out, x, rows, cols))
    np.testing.assert_array_equal(out, x.sum(1))
