// Indices made safe, and a note of the first that was not: a GPU's indices cannot be looked at
// without waiting for it, and one beyond the table would be read from somebody else's memory.
//
//   out = index where low <= index < high, or index == ignored; else instead
//   note[0], if it was 0, becomes `site`, which names the op; note[1] the index
//
//   index   n of type I: reads its size and writes 8 bytes an index
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// 8192 indices are 128 KiB, so the launch is what it costs; of many millions 80%.
//
// Wrapper: minidl/cuda/index_check.py   Test: tests/cuda/test_index_check.py
#include "common.cuh"

#ifndef I
#define I long long
#endif

extern "C" __global__ void index_check(long long* out, unsigned long long* note, const I* index,
                                       int n, long long low, long long high, long long ignored,
                                       long long instead, unsigned long long site) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    long long v = (long long)index[i];
    if ((v < low || v >= high) && v != ignored) {
      if (atomicCAS(&note[0], 0ull, site) == 0) note[1] = (unsigned long long)v;
      v = instead;
    }
    out[i] = v;
  }
}
