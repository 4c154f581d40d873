// Gradient of an embedding: rows of gy are added to the rows of the table that they were read from.
//
//   out[v] = sum of gy[t] over all t with index[t] = v            gy (n, width) T, out (vocabulary, width) ACC
//   reads gy once and the indices, writes the rows that occur: 8 bytes an element of gy in float, plus zeroing the table
//
// Several t may meet at one row. Three ways to keep their sums whole:
//   embedding_grad_atomic    a thread per element of gy, atomicAdd: simple, but the order of additions is left to chance,
//                            and so are the last bits
//   embedding_grad_columns   a thread owns some columns and walks all t: no two threads meet. Always the same order, and
//                            as parallel as a CPU needs
//   embedding_grad_segments  the indices are sorted first (by the array library), so that rows that meet are neighbours; a
//                            thread per (distinct row, column) adds them up. Always the same order, and parallel enough
//                            for a GPU
// Wrapper: minidl/fused/embedding_grad.py   Test: tests/fused/test_embedding_grad.py
#include "common.cuh"

#ifndef ACC  // half is summed in float
#define ACC float
#endif

// out must be zeros.
extern "C" __global__ void embedding_grad_atomic(ACC* out, const T* gy, const long long* index, int n, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    for (int t = blockIdx.y; t < n; t += gridDim.y)
      atomicAdd(&out[index[t] * width + col], (ACC)to_float(gy[(long long)t * width + col]));
}

// out must be zeros. Blocks of one thread, so that the CPU's threads share them one by one.
extern "C" __global__ void embedding_grad_columns(ACC* out, const T* gy, const long long* index, int n, int width,
                                                  int columns) {
  int begin = blockIdx.x * columns, end = min(begin + columns, width);  // guard
  for (int t = 0; t < n; ++t) {
    ACC* row = out + index[t] * width;
    const T* g = gy + (long long)t * width;
    SIMD for (int col = begin; col < end; ++col) row[col] += to_float(g[col]);
  }
}

// order: the positions t, sorted by index; segment s is order[starts[s]] .. order[starts[s + 1] - 1], all of one index.
extern "C" __global__ void embedding_grad_segments(ACC* out, const T* gy, const long long* index, const long long* order,
                                                   const long long* starts, int n_segments, int width) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < width)  // guard
    for (int s = blockIdx.y; s < n_segments; s += gridDim.y) {
      ACC sum = 0;
      for (long long k = starts[s]; k < starts[s + 1]; ++k) sum += to_float(gy[order[k] * width + col]);
      out[index[order[starts[s]]] * width + col] = sum;
    }
}
