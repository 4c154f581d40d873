// ReLU with the bias of the linear layer before it: out = max(x + bias, 0), in one pass.
//
//   bias_relu*            out, x (rows, cols), bias (cols)
//                         8 bytes an element in float; as array operations 16
//   bias_relu_backward*   gx, partial (chunks, cols), gy, out
//                         12; gx = gy where out > 0, partial: its sums over rows
// Backward wants out, which the next layer keeps anyway; x + bias never reaches memory. A building
// block for models of your own: nn.Linear adds its bias itself.
//
// Rungs: _rows, a thread per row (on a CPU: per row a vector loop); then a thread per element.
// Wrapper: minidl/fused/bias_relu.py   Test: tests/fused/test_bias_relu.py
#include "common.cuh"

#ifndef ACC  // what T is computed and summed in: float, or double for double
#define ACC float
#endif

// A NaN stays one: fmaxf would drop it.
template <typename V> __device__ __forceinline__ V relu(V x) { return x < 0 ? V(0) : x; }

extern "C" __global__ void bias_relu_rows(T* out, const T* x, const T* bias, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    long long at = (long long)row * cols;
    SIMD for (int col = 0; col < cols; ++col)
      out[at + col] = from_float<T>(relu(to_float(x[at + col]) + to_float(bias[col])));
  }
}

// A thread per chunk of rows, so that it can add up its own part of the bias gradient.
extern "C" __global__ void bias_relu_backward_rows(T* gx, ACC* partial, const T* gy, const T* out,
                                                   int rows, int cols, int rows_per_chunk) {
  int chunk = blockIdx.x * blockDim.x + threadIdx.x;
  int first = chunk * rows_per_chunk, last = min(first + rows_per_chunk, rows);
  if (first < rows) {  // guard
    ACC* sum = partial + (long long)chunk * cols;
    for (int col = 0; col < cols; ++col) sum[col] = 0;
    for (int row = first; row < last; ++row) {
      long long at = (long long)row * cols;
      SIMD for (int col = 0; col < cols; ++col) {
        ACC g = to_float(gy[at + col]) * (ACC)(to_float(out[at + col]) > 0);
        gx[at + col] = from_float<T>(g);
        sum[col] += g;
      }
    }
  }
}

// ---- a thread per element: neighbours in a row are neighbours in a warp, which then reads whole
// cache lines

extern "C" __global__ void bias_relu(T* out, const T* x, const T* bias, int rows, int cols) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < cols)  // guard
    // a grid has at most 65535 blocks along y
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
      long long i = (long long)row * cols + col;
      out[i] = from_float<T>(relu(to_float(x[i]) + to_float(bias[col])));
    }
}

// A thread per column of a chunk; its part of the sum stays in a register.
extern "C" __global__ void bias_relu_backward(T* gx, ACC* partial, const T* gy, const T* out,
                                              int rows, int cols, int rows_per_chunk) {
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  int first = blockIdx.y * rows_per_chunk, last = min(first + rows_per_chunk, rows);
  if (col < cols) {  // guard
    ACC sum = 0;
    for (int row = first; row < last; ++row) {
      long long i = (long long)row * cols + col;
      ACC g = to_float(gy[i]) * (ACC)(to_float(out[i]) > 0);
      gx[i] = from_float<T>(g);
      sum += g;
    }
    partial[(long long)blockIdx.y * cols + col] = sum;
  }
}
