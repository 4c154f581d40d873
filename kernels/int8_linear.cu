// Linear layer in int8: y = x_scale w_scale (x w^T) + bias. The products are summed exactly, in
// 32-bit integers. x and w come from quantize.cu. This file is a lesson: no layer of minidl.nn
// calls its kernels.
//
//   y (rows, outs) of T     x (rows, k) int8, one scale
//                           w (outs, k) int8, one scale per output (step 1) or one for all (step 0)
//   bias (outs) float, or null
//   A weight is 1 byte, where a float weight is 4 bytes. A sum of k products is at most 127^2 k. It
//   fits in 32 bits if k <= 133,152.
//
// Rungs, with the number of loads from x for each element of y. The number of loads from w is the
// same. A word has four int8:
//   v1   A thread computes a row. cpu/int8_linear.cu does the same in vectors      k bytes
//   v2   A thread computes an element of y. The instruction __dp4a does four       k / 4 words
//        products
//   v3   As v2, with tiles of 16 x 16 words in shared memory                       k / 64 words
//
// Expected share of __dp4a's peak on a GPU. It is computed, not measured. For each __dp4a, v2 waits
// for two words from the cache, which gives 5%. v3 waits for two words from shared memory, which
// gives 25%. The peak of tensor cores is 8 times the peak of __dp4a.
// Source: Jacob et al. 2018 (arXiv 1712.05877).   Wrapper: minidl/ops/extra/int8_linear.py
// Test: tests/ops/extra/test_int8_linear.py
#include "int8_linear.cuh"

extern "C" __global__ void int8_linear_v1(T* y, const signed char* x, const signed char* w,
                                          const float* x_scale, const float* w_scale,
                                          const float* bias, int rows, int outs, int k, int step) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const signed char* a = x + (long long)row * k;
    for (int o = 0; o < outs; ++o) {
      const signed char* b = w + (long long)o * k;
      int sum = 0;
      for (int l = 0; l < k; ++l) sum += a[l] * b[l];
      y[(long long)row * outs + o] = real(sum, x_scale, w_scale, bias, o, step);
    }
  }
}

// `words` is the length of a row, in words of four int8. The caller pads rows with zeros to whole
// words.
// Block: 2-D, any size.
extern "C" __global__ void int8_linear_v2(T* y, const int* x, const int* w, const float* x_scale,
                                          const float* w_scale, const float* bias, int rows,
                                          int outs, int words, int step) {
  int o = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < rows && o < outs) {  // guard
    int sum = 0;
    for (int l = 0; l < words; ++l)
      sum = __dp4a(x[(long long)row * words + l], w[(long long)o * words + l], sum);
    y[(long long)row * outs + o] = real(sum, x_scale, w_scale, bias, o, step);
  }
}

// The 16 x 16 threads of a block share 16 rows of x and 16 rows of w.
// Block: 16 x 16.
#define TILE 16
extern "C" __global__ void int8_linear_v3(T* y, const int* x, const int* w, const float* x_scale,
                                          const float* w_scale, const float* bias, int rows,
                                          int outs, int words, int step) {
  // with + 1 a row of ws has 17 words, so a column of ws lies in 16 different banks
  __shared__ int xs[TILE][TILE], ws[TILE][TILE + 1];
  int tx = threadIdx.x, ty = threadIdx.y;
  int row = blockIdx.y * TILE + ty, o = blockIdx.x * TILE + tx, w_row = blockIdx.x * TILE + ty;
  int sum = 0;
  for (int l0 = 0; l0 < words; l0 += TILE) {
    // guard: elements beyond the edges are 0
    xs[ty][tx] = row < rows && l0 + tx < words ? x[(long long)row * words + l0 + tx] : 0;
    ws[ty][tx] = w_row < outs && l0 + tx < words ? w[(long long)w_row * words + l0 + tx] : 0;
    __syncthreads();  // both tiles are complete
    for (int l = 0; l < TILE; ++l) sum = __dp4a(xs[ty][l], ws[tx][l], sum);
    __syncthreads();  // all threads have read both tiles
  }
  if (row < rows && o < outs)
    y[(long long)row * outs + o] = real(sum, x_scale, w_scale, bias, o, step);
}
