// The int8 matrix product on a CPU. Each thread takes one row, and its sums use vectors. Formula,
// parameters and the rungs for a GPU: ../int8_linear.cu
// Wrapper: minidl/ops/extra/int8_linear.py   Test: tests/ops/extra/test_int8_linear.py
#include "loops.cuh"
#include "int8_linear.cuh"

extern "C" __global__ void int8_linear(T* y, const signed char* x, const signed char* w,
                                          const float* x_scale, const float* w_scale,
                                          const float* bias, int rows, int outs, int k, int step) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const signed char* a = x + (long long)row * k;
    for (int o = 0; o < outs; ++o) {
      const signed char* b = w + (long long)o * k;
      int sum = 0;
      SIMD_SUM(sum) for (int l = 0; l < k; ++l) sum += a[l] * b[l];
      y[(long long)row * outs + o] = real(sum, x_scale, w_scale, bias, o, step);
    }
  }
}
