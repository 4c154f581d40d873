// Dropout, from random numbers that nobody stores.
//
//   out = x keep scale       keep_i = draw_i >= threshold
//                            threshold = ceil(p 2^32), scale = 1 / (1 - p)
//   draw_i: draw i of the generator (seed, stream) at `counter`; backward runs dropout on gy and
//   draws the same again.
//
//   out, x   n elements of type T: 8 bytes an element in float
//   A mask in memory would cost 2 more for writing and reading it, and a chain of array operations
//   about 40.
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured): ten rounds of
// the cipher are some 250 instructions for eight elements. An H100's SM runs 128 a cycle, four
// elements, and gets 15 bytes a cycle from memory, which is two elements in float, four in half:
// 90% and 80%. _naive needs eight times the instructions: 15 to 25%.
//
// Rungs: _naive, a thread per element, which runs the cipher for eight draws and uses one; then a
// thread per eight elements. On a CPU: cpu/dropout.cu
// Wrapper: minidl/ops/dropout.py   Test: tests/ops/test_dropout_kernel.py
#include "dropout.cuh"

extern "C" __global__ void dropout_naive(T* out, const T* x, int n, unsigned long long seed,
                                         unsigned long long stream, unsigned long long counter,
                                         unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(to_float(x[i])
                           * kept(random_bits(seed, stream, counter, i), threshold, scale));
}

// A thread per eight elements, which one run of the cipher serves: n8 = ceil(n / 8).
extern "C" __global__ void dropout(T* out, const T* x, int n, int n8, unsigned long long seed,
                                   unsigned long long stream, unsigned long long counter,
                                   unsigned int threshold, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n8) {  // guard
    unsigned int draws[8];
    philox(counter + i, seed, stream, draws);
    out += 8 * i, x += 8 * i;
    // Neighbouring threads read eight elements apart: in packs of 16 bytes every byte that a warp
    // fetches is used at once.
    const int size = PACK(T);
    const bool whole = packs(x) && packs(out);
    for (int k0 = 0; k0 < 8; k0 += size) {
      Pack<T> pack = load_pack(x + k0, n - 8 * i - k0, whole);
#pragma unroll
      for (int k = 0; k < size; ++k)
        pack.at[k] = from_float<T>(to_float(pack.at[k]) * kept(draws[k0 + k], threshold, scale));
      store_pack(out + k0, pack, n - 8 * i - k0, whole);
    }
  }
}
