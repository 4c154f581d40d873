// Cross entropy of classes on a CPU: v1 of ../cross_entropy.cu in vectors. A thread computes a row.
// It reads the row twice, the second time from the cache. In float, forward reads 4 bytes from
// memory for each element of x. Backward reads 4 bytes and writes 4 bytes for each element.
//
// Formulas, parameters and the ladder for a GPU: ../cross_entropy.cu
// Wrapper: minidl/ops/cross_entropy.py   Test: tests/ops/test_cross_entropy_kernel.py
#include "cross_entropy.cuh"
#include "loops.cuh"

extern "C" __global__ void cross_entropy(ACC* loss, ACC* lse, const T* x,
                                            const long long* target, int rows, int cols,
                                            long long ignore_index, ACC smoothing) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    ACC m = -INFINITY, sum = 0, total = 0;
    if (target[row] == ignore_index) {
      loss[row] = 0;
      lse[row] = INFINITY;
    } else {
      SIMD_MAX(m)
      for (int j = 0; j < cols; ++j) m = to_float(xr[j]) > m ? to_float(xr[j]) : m;
      for (int begin = 0; begin < cols; begin += AHEAD) {
        int end = min(begin + AHEAD, cols);
        fetch(xr + cols, begin, end);
        SIMD_SUM(sum)
        for (int j = begin; j < end; ++j) sum += exp_below_zero(to_float(xr[j]) - m);
      }
      if (smoothing > 0) {
        SIMD_SUM(total)
        for (int j = 0; j < cols; ++j) total += to_float(xr[j]);
      }
      loss[row] = row_loss(m, sum, to_float(xr[target[row]]), total / cols, smoothing);
      lse[row] = m + log(sum);
    }
  }
}

extern "C" __global__ void cross_entropy_backward(T* gx, const ACC* g, const T* x,
                                                     const ACC* lse, const long long* target,
                                                     int rows, int cols, long long ignore_index,
                                                     ACC smoothing) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    T* gxr = gx + (long long)row * cols;
    ACC gr = g[row], l = lse[row], wanted = smoothing / cols;
    long long t = target[row];
    if (t == ignore_index) {
      for (int j = 0; j < cols; ++j) gxr[j] = from_float<T>(ACC(0));
    } else {
      SIMD
      for (int j = 0; j < cols; ++j) gxr[j] = slope(gr, to_float(xr[j]), l, wanted);
      gxr[t] = slope(gr, to_float(xr[t]), l, wanted + 1 - smoothing);
    }
  }
}
