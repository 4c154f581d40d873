// tensor_core.cuh's instructions on their own: a warp, its fragments as arrays (32 lanes, registers).
// Test: tests/cuda/host/test_tensor_core.py
#include "tensor_core.cuh"

extern "C" __global__ void products(float* c, const unsigned int* a, const unsigned int* b,
                                    int n_lanes) {
  const int lane = threadIdx.x;
  if (lane < n_lanes) mma(c + 4 * lane, a + 4 * lane, b + 2 * lane);
}

// x: 16 x 16 halves; out: (3, 32, 4), what load_a, load_b and load_b_transposed give each lane.
extern "C" __global__ void fragments(unsigned int* out, const __half* x) {
  __shared__ __align__(16) __half m[16 * 24];
  for (int i = threadIdx.x; i < 256; i += 32) m[i / 16 * 24 + i % 16] = x[i];
  __syncwarp();
  load_a(out + 4 * threadIdx.x, m, 24);
  load_b(out + 128 + 4 * threadIdx.x, m, 24);
  load_b_transposed(out + 256 + 4 * threadIdx.x, m, 24);
}
