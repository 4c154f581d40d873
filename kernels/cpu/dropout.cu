// Dropout on a CPU: a thread computes eight elements, in a vector. Formula, parameters and the
// rungs for a GPU: ../dropout.cu
// Wrapper: minidl/ops/dropout.py   Test: tests/ops/test_dropout_kernel.py
#include "dropout.cuh"
#include "loops.cuh"

// A thread computes eight elements, with one run of the cipher. There are n8 = ceil(n / 8) threads.
extern "C" __global__ void dropout(T* out, const T* x, int n, int n8, unsigned long long seed,
                                   unsigned long long stream, unsigned long long counter,
                                   unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n8) {  // guard
    unsigned int draws[8];
    philox(counter + i, seed, stream, draws);
    out += 8 * i, x += 8 * i;
    const auto put = [&](int k) {
      out[k] = from_float<T>(to_float(x[k]) * kept(draws[k], threshold, scale));
    };
    if (n - 8 * i >= 8)
      SIMD for (int k = 0; k < 8; ++k) put(k);
    else
      for (int k = 0; 8 * i + k < n; ++k) put(k);  // guard: fewer than eight elements are left
  }
}
