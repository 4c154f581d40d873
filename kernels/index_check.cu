// Replaces each invalid index by a valid one, and records one invalid index. An op that reads a
// table at an invalid index reads memory of other data. The kernel checks the indices on the GPU,
// because the host must wait for the GPU before it can read them.
//
//   out = index if low <= index < high or index == ignored, else out = instead
//   For an invalid index, if note[0] is 0: note[0] = site, a number that names the op, and
//   note[1] = the index. Otherwise note already holds an invalid index
//
//   index   n elements of type I. For each, the kernel reads sizeof(I) bytes and writes 8 bytes
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// For 8192 indices the kernel reads and writes only 128 KiB, so the launch takes most of the time.
// For many millions of indices the kernel reaches 80%.
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
