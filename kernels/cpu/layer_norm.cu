// Layer norm on a CPU: v1 of ../layer_norm.cu in vectors. A thread computes a row, in three loops:
// mean, variance, result. The second and the third loop read the row from the cache. With
// -DCENTERED=0 the file computes RMS norm.
//
// In float, forward moves 8 bytes for each element: it reads x and writes y. Backward moves 12
// bytes: it reads x and gy, and writes gx.
//
// Formulas, parameters and the ladder for a GPU: ../layer_norm.cu
// Wrapper: minidl/ops/layer_norm.py   Test: tests/ops/test_layer_norm_kernel.py
#include "loops.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif
#ifndef CENTERED
#define CENTERED 1
#endif

extern "C" __global__ void layer_norm(T* y, ACC* mean, ACC* rstd, const T* x, const T* w,
                                         const T* b, int rows, int cols, ACC eps) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* xr = x + (long long)row * cols;
    T* yr = y + (long long)row * cols;
    ACC sum = 0, squares = 0;
    if (CENTERED) {
      SIMD_SUM(sum)
      for (int j = 0; j < cols; ++j) sum += to_float(xr[j]);
    }
    ACC m = sum / cols;
    SIMD_SUM(squares)
    for (int j = 0; j < cols; ++j) {
      ACC d = to_float(xr[j]) - m;
      squares += d * d;
    }
    ACC r = 1 / sqrt(squares / cols + eps);
    SIMD
    for (int j = 0; j < cols; ++j) {
      ACC xhat = (to_float(xr[j]) - m) * r;
      yr[j] = from_float<T>(CENTERED
                            ? xhat * to_float(w[j]) + to_float(b[j]) : xhat * to_float(w[j]));
    }
    if (CENTERED) mean[row] = m;
    rstd[row] = r;
  }
}

// A thread computes one part of the rows. It writes gx. In the same loop it adds its rows to gw and
// gb, while x and gy are in the cache. `parts` and SUMS are explained in ../layer_norm.cu. Its
// kernel layer_norm_add_eight adds the parts.
const int SUMS = CENTERED ? 2 : 1;
extern "C" __global__ void layer_norm_backward(T* gx, ACC* parts, const T* gy, const T* x,
                                                  const T* w, const ACC* mean, const ACC* rstd,
                                                  int rows, int cols, int n_parts) {
  int part = blockIdx.x * blockDim.x + threadIdx.x;
  if (part < n_parts) {  // guard
    int begin = (long long)rows * part / n_parts, end = (long long)rows * (part + 1) / n_parts;
    ACC *gw = parts + (long long)part * SUMS * cols, *gb = gw + cols;
    for (int j = 0; j < SUMS * cols; ++j) gw[j] = 0;
    for (int row = begin; row < end; ++row) {
      const T *xr = x + (long long)row * cols, *gyr = gy + (long long)row * cols;
      T* gxr = gx + (long long)row * cols;
      ACC m = CENTERED ? mean[row] : ACC(0), r = rstd[row], sum = 0, along = 0;
      SIMD_SUM(sum, along)
      for (int j = 0; j < cols; ++j) {
        ACC xhat = (to_float(xr[j]) - m) * r, gyj = to_float(gyr[j]), g = gyj * to_float(w[j]);
        gw[j] += gyj * xhat;
        if (CENTERED) gb[j] += gyj;
        sum += g;
        along += g * xhat;
      }
      sum = CENTERED ? sum / cols : ACC(0);
      along /= cols;
      SIMD
      for (int j = 0; j < cols; ++j) {
        ACC xhat = (to_float(xr[j]) - m) * r, g = to_float(gyr[j]) * to_float(w[j]);
        gxr[j] = from_float<T>(r * (g - sum - xhat * along));
      }
    }
  }
}
