// Finds the large elements of a vector on a CPU: a thread per chunk. Formula, parameters and the
// rungs for a GPU: ../topk_mask.cu
//
//   compact        tests 64 elements at a time, in vectors. If one of the 64 is large, a loop goes
//                  through the 64 elements one by one
//   compact_few    counts and compacts in one pass, if few elements are large. Each chunk has room
//                  for `slots` pairs. If counts[chunk] is larger than slots, some large elements of
//                  the chunk are not written
// Wrapper: minidl/parallel/data/topk_mask.py   Test: tests/parallel/data/test_topk_mask.py
#include "loops.cuh"
#include "topk_mask.cuh"

extern "C" __global__ void count_above(int* counts, const T* x, float threshold, int n, int length,
                                       int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    int begin = c * length, end = min(n - begin, length) + begin, count = 0;
    SIMD_SUM(count) for (int i = begin; i < end; ++i) count += is_large(x[i], threshold);
    counts[c] = count;
  }
}

// Tests the elements base, ..., last - 1. These are at most 64. Returns 0 if none of them is large,
// else another number. If there are fewer than 64, returns 1 without a test.
static __device__ int any_above(const T* x, float threshold, int base, int last) {
  if (last - base < 64) return 1;
  int found = 0;
  SIMD_SUM(found) for (int i = 0; i < 64; ++i) found += is_large(x[base + i], threshold);
  return found;
}

extern "C" __global__ void compact(int* index, T* value, const T* x, const int* first,
                                   float threshold, int n, int length, int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    int begin = c * length, end = min(n - begin, length) + begin, at = first[c];
    for (int base = begin; base < end; base += 64) {
      int last = min(end - base, 64) + base;
      if (any_above(x, threshold, base, last)) {
        for (int i = base; i < last; ++i)
          if (is_large(x[i], threshold)) {
            index[at] = i;
            value[at++] = x[i];
          }
      }
    }
  }
}

extern "C" __global__ void compact_few(int* counts, int* index, T* value, const T* x,
                                       float threshold, int n, int length, int slots,
                                       int n_chunks) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < n_chunks) {  // guard
    int begin = c * length, end = min(n - begin, length) + begin, at = c * slots, count = 0;
    for (int base = begin; base < end; base += 64) {
      int last = min(end - base, 64) + base;
      if (any_above(x, threshold, base, last)) {
        for (int i = base; i < last; ++i)
          if (is_large(x[i], threshold) && ++count <= slots) {
            index[at] = i;
            value[at++] = x[i];
          }
      }
    }
    counts[c] = count;
  }
}
