// int8 quantisation on a CPU. Each thread takes one row, and its loop uses vectors. Formulas,
// parameters and the rungs for a GPU: ../quantize.cu
// Wrapper: minidl/ops/extra/quantize.py   Test: tests/ops/extra/test_quantize.py
#include "loops.cuh"
#include "quantize.cuh"

extern "C" __global__ void absmax(float* top, const T* x, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    const T* r = x + (long long)row * cols;
    int most = 0;
    SIMD_MAX(most) for (int col = 0; col < cols; ++col) most =
        max(most, magnitude(to_float(r[col])));
    top[row] = __int_as_float(most);
  }
}

extern "C" __global__ void quantize(signed char* q, const T* x, const float* scale, int rows,
                                    int cols, int step) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    long long at = (long long)row * cols;
    float s = scale[row * step];
    SIMD for (int col = 0; col < cols; ++col) q[at + col] = to_int8(to_float(x[at + col]), s);
  }
}

extern "C" __global__ void dequantize(T* x, const signed char* q, const float* scale, int rows,
                                      int cols, int step) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) {  // guard
    long long at = (long long)row * cols;
    float s = scale[row * step];
    SIMD for (int col = 0; col < cols; ++col) x[at + col] = from_float<T>((float)q[at + col] * s);
  }
}
