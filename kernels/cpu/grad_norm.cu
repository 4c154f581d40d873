// Sums of squares on a CPU. Each thread takes one chunk, and its loop uses vectors. Formula and
// parameters: ../grad_norm.cu
// Wrapper: minidl/cuda/grad_norm.py   Test: tests/cuda/test_grad_norm.py
#include "loops.cuh"

#ifndef ACC  // the type of the arithmetic: float, or double for double
#define ACC float
#endif

extern "C" __global__ void sum_squares_chunks(ACC* partial, const T* const* gs,
                                              const long long* chunks, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    const T* g = gs[chunks[3 * c]];
    long long begin = chunks[3 * c + 1], end = chunks[3 * c + 2];
    ACC sum = 0;
    SIMD_SUM(sum) for (long long i = begin; i < end; ++i) {
      ACC x = to_float(g[i]);
      sum += x * x;
    }
    partial[c] = sum;
  }
}
