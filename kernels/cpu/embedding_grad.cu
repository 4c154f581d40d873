// Gradient of an embedding on a CPU. A thread owns some rows of the table. It looks at all indices
// and adds whole rows of gy. No two threads add to one row, and the order of additions is always
// the same. Formula and the rungs for a GPU: ../embedding_grad.cu
// Wrapper: minidl/ops/embedding.py   Test: tests/ops/test_embedding_kernel.py
#include "loops.cuh"

#ifndef ACC  // half is summed in float
#define ACC float
#endif

// out must be zeros. Each block has one thread, so the CPU's threads take the blocks one by one.
// (In another version each thread took a group of columns. But it is slow to read short pieces of
// rows from memory: this version reached only two thirds of the speed.)
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
