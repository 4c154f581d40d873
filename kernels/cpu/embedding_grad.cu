// Gradient of an embedding on a CPU. A thread owns some rows of the table's gradient. It reads all
// indices, and adds the rows of gy that belong to its own rows. So no two threads add to the same
// row, and the order of additions is always the same.
// Formula and the rungs for a GPU: ../embedding_grad.cu
// Wrapper: minidl/ops/embedding.py   Test: tests/ops/test_embedding_kernel.py
#include "loops.cuh"

#ifndef ACC  // half is summed in float
#define ACC float
#endif

// Before the launch, out must be filled with zeros. Each block has one thread, so the CPU's threads
// take the blocks one by one. It was slower to give each thread a group of columns: reading short
// pieces of rows took 1.5 times as long.
extern "C" __global__ void embedding_grad_rows(ACC* out, const T* gy, const long long* index, int n,
                                               int width, int n_rows) {
  const long long begin = (long long)n_rows * blockIdx.x / gridDim.x;
  const long long end = (long long)n_rows * (blockIdx.x + 1) / gridDim.x;
  for (int t = 0; t < n; ++t) {
    if (index[t] < begin || index[t] >= end) continue;  // another thread owns this row
    ACC* row = out + index[t] * width;
    const T* g = gy + (long long)t * width;
    SIMD for (int col = 0; col < width; ++col) row[col] += to_float(g[col]);
  }
}
