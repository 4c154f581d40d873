// Writes a generator's random bits to device memory: the same bits as minidl/random.py.
//
//   out[i] = draw i of Generator(seed, stream) at `counter`; n draws of 32 bits
//   writes 4 bytes a draw, and reads nothing. The cipher is in common.cuh
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// The cipher takes 40 wide products for 32 bytes, so the limit is arithmetic and not memory. This
// gives 20 to 30%.
//
// Each thread makes the eight draws of one run of the cipher: n8 = ceil(n / 8) threads.
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
      if (8ll * i + k < n) out[8ll * i + k] = draws[k];  // guard: the last few
  }
}
