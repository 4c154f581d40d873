// Replaces each invalid index by a valid one, and records the first invalid index. The host cannot
// look at a GPU's indices without waiting for the GPU. An index beyond the table would read memory
// that belongs to other data.
//
//   out = index if low <= index < high or index == ignored, else out = instead
//   If note[0] is 0: note[0] = site, a number that names the op, and note[1] = the invalid index
//
//   index   n of type I: reads sizeof(I) bytes and writes 8 bytes an index
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// 8192 indices are 128 KiB, so the launch takes most of the time. With many millions of indices,
// the kernel reaches 80%.
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
