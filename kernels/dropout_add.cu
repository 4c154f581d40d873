// Dropout, alone and with the residual connection that follows it, from random numbers that nobody
// stores.
//
//   dropout        out = x keep scale                 keep_i = draw_i >= threshold
//   dropout_add    out = residual + x keep scale      threshold = ceil(p 2^32), scale = 1 / (1 - p)
//   draw_i: draw i of the generator (seed, stream) at `counter`; backward runs dropout on gy and
//   draws the same again.
//
//   out, x, residual   n elements of type T
//                      dropout: 8 bytes an element in float; dropout_add: 12
//   A mask in memory would cost 2 more for writing and reading it, and a chain of array operations
//   about 40.
//
// Rungs: _naive, a thread per element, which runs the cipher for eight draws and uses one; then a
// thread per eight elements.
// Wrapper: minidl/fused/dropout_add.py   Test: tests/fused/test_dropout_add.py
#include "common.cuh"

// What x is multiplied by: a product, because a branch on a random number is guessed wrong half the
// time. p = 1 gives the threshold 2^32, which has no place in 32 bits: then scale is 0.
__device__ __forceinline__ float kept(unsigned int draw, unsigned int threshold, float scale) {
  return scale * (float)(draw >= threshold);
}

extern "C" __global__ void dropout_naive(T* out, const T* x, int n, unsigned long long seed,
                                         unsigned long long stream, unsigned long long counter,
                                         unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(to_float(x[i])
                           * kept(random_bits(seed, stream, counter, i), threshold, scale));
}

// The eight elements 8 i .. 8 i + 7, which one run of the cipher serves; residual may be null.
__device__ __forceinline__ void eight(T* out, const T* x, const T* residual, int i, int n,
                                      unsigned long long seed, unsigned long long stream,
                                      unsigned long long counter, unsigned int threshold,
                                      float scale) {
  unsigned int draws[8];
  philox(counter + i, seed, stream, draws);
  out += 8 * i, x += 8 * i, residual += residual ? 8 * i : 0;
  const auto put = [&](int k) {
    float y = to_float(x[k]) * kept(draws[k], threshold, scale);
    out[k] = from_float<T>(residual ? to_float(residual[k]) + y : y);
  };
  if (n - 8 * i >= 8)
    SIMD for (int k = 0; k < 8; ++k) put(k);
  else
    for (int k = 0; 8 * i + k < n; ++k) put(k);  // guard: the last few
}

// A thread per eight elements: n8 = ceil(n / 8).
extern "C" __global__ void dropout(T* out, const T* x, int n, int n8, unsigned long long seed,
                                   unsigned long long stream, unsigned long long counter,
                                   unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n8)  // guard
    eight(out, x, nullptr, i, n, seed, stream, counter, threshold, scale);
}

extern "C" __global__ void dropout_add(T* out, const T* x, const T* residual, int n, int n8,
                                       unsigned long long seed, unsigned long long stream,
                                       unsigned long long counter, unsigned int threshold,
                                       float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n8)  // guard
    eight(out, x, residual, i, n, seed, stream, counter, threshold, scale);
}
