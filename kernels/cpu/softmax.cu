// Softmax over rows on a CPU: v1 of ../softmax.cu in vectors. A thread computes a row. The row
// stays in the core's cache, so only the first read and the last write of an element go to memory.
// In float these are 8 bytes in forward (x, y), and 12 bytes in backward (gy, y, gx). With -DLOG=1
// the result is the logarithm of softmax.
//
// Formulas and the ladder for a GPU: ../softmax.cu
// Wrapper: minidl/ops/softmax.py   Test: tests/ops/test_softmax_kernel.py
#include "loops.cuh"
#include "softmax.cuh"

// The second loop stores the exponentials in y, and the third loop reads them. This is faster than
// computing them again. But half is too inexact for them. So if y is in half, the third loop
// computes them again.
extern "C" __global__ void softmax(T* y, const T* x, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    T* yr = y + (long long)row * cols;
    const bool holds = !LOG && sizeof(T) == sizeof(ACC);
    ACC m = -INFINITY, sum = 0;
    SIMD_MAX(m)
    for (int j = 0; j < cols; ++j) {
      ACC s = to_float(xr[j]);
      m = s > m ? s : m;
    }
    SIMD_SUM(sum)
    for (int j = 0; j < cols; ++j) {
      ACC e = exp_below_zero(to_float(xr[j]) - m);
      if (holds) yr[j] = from_float<T>(e);
      sum += e;
    }
    ACC last = last_of(sum);
    SIMD
    for (int j = 0; j < cols; ++j) {
      ACC d = to_float(xr[j]) - m;
      yr[j] = holds ? from_float<T>(to_float(yr[j]) * last) : result(d, last);
    }
  }
}

extern "C" __global__ void softmax_backward(T* gx, const T* gy, const T* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T *gyr = gy + (long long)row * cols, *yr = y + (long long)row * cols;
    T* gxr = gx + (long long)row * cols;
    ACC sum = 0;
    SIMD_SUM(sum)
    for (int j = 0; j < cols; ++j) sum += term(to_float(gyr[j]), to_float(yr[j]));
    for (int begin = 0; begin < cols; begin += AHEAD) {
      int end = min(begin + AHEAD, cols);
      fetch(gyr + cols, begin, end);
      fetch(yr + cols, begin, end);
      fetch_to_write(gxr + cols, begin, end);
      SIMD
      for (int j = begin; j < end; ++j)
        gxr[j] = from_float<T>(slope(to_float(gyr[j]), to_float(yr[j]), sum));
    }
  }
}
