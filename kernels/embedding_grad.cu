// Gradient of an embedding: rows of gy are added to the rows of the table that they were read from.
//
//   out[v] = sum of gy[t] over all t with index[t] = v
//   gy (n, width) T, out (vocabulary, width) ACC
//   reads gy once and the indices, writes the rows that occur: 8 bytes an element of gy in float,
//   plus zeroing the table
//
// Several t may meet at one row. Three ways to keep their sums whole:
//   embedding_grad_atomic    a thread per element of gy, atomicAdd: simple, but the order of
//                            additions is left to chance, and so are the last bits
//   embedding_grad_rows      a thread owns some rows of the table, looks at all indices and adds
//                            whole rows of gy: no two threads meet. Always the same order, and as
//                            parallel as a CPU needs
//   embedding_grad_segments  the indices are sorted first (by the array library), so that rows that
//                            meet are neighbours; a thread per (distinct row, column) adds them up.
//                            Always the same order, and parallel enough for a GPU
//
// Share of a copy's bandwidth to be expected on a GPU, by arithmetic (not measured; how: gelu.cu):
// _segments reads one element of gy a thread, in rows that lie anywhere: a row of 768 halves is 12
// whole requests, so 50% in float, 25 to 30% in half; a word that is in every sentence makes one
// block sum for long while the others are done. Sorting the indices costs as much again.
// Wrapper: minidl/fused/embedding_grad.py   Test: tests/fused/test_embedding_grad.py
#include "common.cuh"

#ifndef ACC  // half is summed in float
#define ACC float
#endif

// out must be zeros.
extern "C" __global__ void embedding_grad_atomic(ACC* out, const T* gy, const long long* index,
                                                 int n, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    for (int t = blockIdx.y; t < n; t += gridDim.y)
      atomicAdd(&out[index[t] * width + col], (ACC)to_float(gy[(long long)t * width + col]));
}

// out must be zeros. Blocks of one thread, so that the CPU's threads share them one by one. (A
// thread per some columns would find work for each index, but in pieces too short for the memory:
// two thirds of this one's speed.)
extern "C" __global__ void embedding_grad_rows(ACC* out, const T* gy, const long long* index, int n,
                                               int width, int n_rows) {
  const long long begin = (long long)n_rows * blockIdx.x / gridDim.x;
  const long long end = (long long)n_rows * (blockIdx.x + 1) / gridDim.x;
  for (int t = 0; t < n; ++t) {
    if (index[t] < begin || index[t] >= end) continue;  // another thread's
    ACC* row = out + index[t] * width;
    const T* g = gy + (long long)t * width;
    SIMD for (int col = 0; col < width; ++col) row[col] += to_float(g[col]);
  }
}

// order: the positions t, sorted by index; segment s is order[starts[s]] .. order[starts[s + 1] -
// 1], all of one index.
extern "C" __global__ void embedding_grad_segments(ACC* out, const T* gy, const long long* index,
                                                   const long long* order, const long long* starts,
                                                   int n_segments, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    for (int s = blockIdx.y; s < n_segments; s += gridDim.y) {
      ACC sum = 0;
      for (long long k = starts[s]; k < starts[s + 1]; ++k)
        sum += to_float(gy[order[k] * width + col]);
      out[index[order[starts[s]]] * width + col] = sum;
    }
}
