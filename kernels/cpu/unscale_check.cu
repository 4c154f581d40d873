// Unscales gradients and counts the values that are not finite, on a CPU. Each thread takes one
// chunk, and its loop uses vectors. Formula and parameters: ../unscale_check.cu
// Wrapper: minidl/cuda/unscale_check.py   Test: tests/cuda/test_unscale_check.py
#include "bad_number.cuh"
#include "loops.cuh"

#ifndef ACC  // the type of the arithmetic: float, or double for double
#define ACC float
#endif

extern "C" __global__ void unscale_check_chunks(int* bad, T* const* gs, ACC inverse,
                                                const ACC* factor, const long long* chunks,
                                                int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    T* g = gs[chunks[3 * c]];
    if (factor) inverse *= *factor;
    long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    int count = 0;
    SIMD_SUM(count) for (long long i = begin; i < end; ++i) {
      T scaled = from_float<T>(to_float(g[i]) * inverse);
      g[i] = scaled;
      count += bad_number(to_float(scaled));
    }
    bad[c] = count;
  }
}

extern "C" __global__ void count_bad_chunks(int* bad, const T* const* gs, const long long* chunks,
                                            int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    const T* g = gs[chunks[3 * c]];
    long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    int count = 0;
    SIMD_SUM(count) for (long long i = begin; i < end; ++i) count += bad_number(to_float(g[i]));
    bad[c] = count;
  }
}
