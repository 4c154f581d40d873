// Writes a generator's random bits to device memory: the same bits as minidl/random.py.
//
//   out[i] = draw i of Generator(seed, stream) at `counter`, for n draws of 32 bits
//   The kernel writes 4 bytes for each draw, and reads nothing. common.cuh has the cipher
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// The cipher needs 40 products of 64-bit numbers for 32 bytes of draws. So arithmetic is the limit,
// and not memory. This gives 20 to 30%.
//
// Each thread makes the eight draws of one run of the cipher. There are n8 = ceil(n / 8) threads.
// Wrapper: minidl/cuda/philox.py   Test: tests/cuda/test_philox.py
#include "common.cuh"

extern "C" __global__ void philox_bits(unsigned int* out, long long n, int n8,
                                       unsigned long long seed, unsigned long long stream,
                                       unsigned long long counter) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n8) {  // guard
    unsigned int draws[8];
    philox(counter + i, seed, stream, draws);
    for (int k = 0; k < 8; ++k)
      if (8ll * i + k < n) out[8ll * i + k] = draws[k];  // guard: the end of out
  }
}
