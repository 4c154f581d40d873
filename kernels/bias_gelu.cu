// GELU, with and without the bias of the linear layer before it: forward in one pass, backward in
// one pass.
//
//   gelu(x) = x P(x)            d gelu / dx = P + x P'
//   normal form (TANH 0):  P = probability that a standard normal number is below x
//   tanh form   (TANH 1):  P = (1 + tanh u) / 2 = 1 / (1 + e^-2u),
//                          u = sqrt(2/pi) (x + 0.044715 x^3)
//
//                        arrays                     shape          bytes an element in float
//   gelu                 out, x                     n                           8
//   gelu_backward        gx, gy, x                  n                          12
//   bias_gelu*           out, x, bias               (rows, cols), (cols)        8
//   bias_gelu_backward*  gx, partial, gy, x, bias   the same                   12
//   partial              (chunks, cols), the bias gradient in parts
//
// A chain of array operations makes about twenty passes instead, 8 or 12 bytes each.
// Rungs of the bias kernels: _rows, one thread per row (on a CPU: per row a vector loop); then a
// thread per element.
//
// Source: Hendrycks & Gimpel 2016 (arXiv 1606.08415); the form of the normal P, Hastings 1955, as
// in minidl/ops/normal.py.
// Wrapper: minidl/fused/bias_gelu.py   Test: tests/fused/test_bias_gelu.py
#include "common.cuh"

#ifndef TANH
#define TANH 0
#endif
#ifndef ACC  // what T is computed and summed in: float, or double for double
#define ACC float
#endif

// P(x) and P'(x) of the normal distribution. P(-z) = e^(-z^2/2) Q(t) with t = 1 / (1 + 0.275 z): P'
// needs the same e^.
__device__ __forceinline__ void normal(float x, float& p, float& slope) {
  float e = exp_below_zero(-0.5f * x * x), t = 1.0f / (1.0f + 0.275f * fabsf(x));
  float q = -0.11485808656480655f;
  q = q * t + 0.45199775294287686f;
  q = q * t - 0.3309919038699306f;
  q = q * t + 0.33393113000718f;
  q = q * t + 0.04211192675999126f;
  q = q * t + 0.11780918548828627f;
  q = q * t * e;
  p = x < 0.0f ? q : 1.0f - q;
  slope = e * 0.3989422804014327f;
}
__device__ __forceinline__ void normal(double x, double& p, double& slope) {
  p = 0.5 * erfc(-0.7071067811865476 * x);
  slope = 0.3989422804014327 * exp(-0.5 * x * x);
}

// P = 1 / (1 + e^-2u) and P' = 2 P (1 - P) u'.
__device__ __forceinline__ void logistic(float x, float& p, float& slope) {
  float u2 = x * (1.5957691216057308f + 0.0713548162726f * x * x);  // 2u
  p = 1.0f / (1.0f + expf(-u2));
  slope = p * (1.0f - p) * (1.5957691216057308f + 0.2140644488178f * x * x);
}
__device__ __forceinline__ void logistic(double x, double& p, double& slope) {
  double u2 = x * (1.5957691216057308 + 0.044715 * 1.5957691216057308 * x * x);
  p = 1.0 / (1.0 + exp(-u2));
  slope = p * (1.0 - p) * (1.5957691216057308 + 3 * 0.044715 * 1.5957691216057308 * x * x);
}

template <typename V> __device__ __forceinline__ V gelu_of(V x) {
  V p, slope;
  if (TANH) logistic(x, p, slope); else normal(x, p, slope);
  return x * p;
}

template <typename V> __device__ __forceinline__ V slope_of(V x) {
  V p, slope;
  if (TANH) logistic(x, p, slope); else normal(x, p, slope);
  return p + x * slope;
}

extern "C" __global__ void gelu(T* out, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(gelu_of(to_float(x[i])));
}

// x is all that forward leaves behind: the slope is computed again, which is cheaper than reading
// it would be.
extern "C" __global__ void gelu_backward(T* gx, const T* gy, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    gx[i] = from_float<T>(to_float(gy[i]) * slope_of(to_float(x[i])));
}

// ---- with bias: naive, a thread per row ----

extern "C" __global__ void bias_gelu_rows(T* out, const T* x, const T* bias, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    long long at = (long long)row * cols;
    SIMD for (int col = 0; col < cols; ++col)
      out[at + col] = from_float<T>(gelu_of(to_float(x[at + col]) + to_float(bias[col])));
  }
}

// A thread per chunk of rows, so that it can add up its own part of the bias gradient.
extern "C" __global__ void bias_gelu_backward_rows(T* gx, ACC* partial, const T* gy, const T* x,
                                                   const T* bias, int rows, int cols,
                                                   int rows_per_chunk) {
  int chunk = blockIdx.x * blockDim.x + threadIdx.x;
  int first = chunk * rows_per_chunk, last = min(first + rows_per_chunk, rows);
  if (first < rows) {  // guard
    ACC* sum = partial + (long long)chunk * cols;
    for (int col = 0; col < cols; ++col) sum[col] = 0;
    for (int row = first; row < last; ++row) {
      long long at = (long long)row * cols;
      SIMD for (int col = 0; col < cols; ++col) {
        ACC g = to_float(gy[at + col]) * slope_of(to_float(x[at + col]) + to_float(bias[col]));
        gx[at + col] = from_float<T>(g);
        sum[col] += g;
      }
    }
  }
}

// ---- a thread per element: neighbours in a row are neighbours in a warp, which then reads whole
// cache lines

extern "C" __global__ void bias_gelu(T* out, const T* x, const T* bias, int rows, int cols) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < cols) {  // guard
    ACC b = to_float(bias[col]);
    // a grid has at most 65535 blocks along y
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
      long long i = (long long)row * cols + col;
      out[i] = from_float<T>(gelu_of(to_float(x[i]) + b));
    }
  }
}

// A thread per column of a chunk; its part of the sum stays in a register.
extern "C" __global__ void bias_gelu_backward(T* gx, ACC* partial, const T* gy, const T* x,
                                              const T* bias, int rows, int cols,
                                              int rows_per_chunk) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  int first = blockIdx.y * rows_per_chunk, last = min(first + rows_per_chunk, rows);
  if (col < cols) {  // guard
    ACC b = to_float(bias[col]), sum = 0;
    for (int row = first; row < last; ++row) {
      long long i = (long long)row * cols + col;
      ACC g = to_float(gy[i]) * slope_of(to_float(x[i]) + b);
      gx[i] = from_float<T>(g);
      sum += g;
    }
    partial[(long long)blockIdx.y * cols + col] = sum;
  }
}
