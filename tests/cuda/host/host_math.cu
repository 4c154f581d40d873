// Every function of kernels/host/float_math.h that is ours, and the conversions of half.h, for
// test_float_math.py.
#include <cuda_fp16.h>

#define MAP(NAME)                                                                        \
  extern "C" __global__ void map_##NAME(float* y, const float* x, int n) {               \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                       \
    if (i < n) y[i] = NAME(x[i]);                                                        \
  }
MAP(expf) MAP(exp2f) MAP(logf) MAP(tanhf) MAP(erff) MAP(rsqrtf) MAP(sqrtf)

extern "C" __global__ void max_min(float* top, float* bottom, const float* a, const float* b,
                                   int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    top[i] = fmaxf(a[i], b[i]);
    bottom[i] = fminf(a[i], b[i]);
  }
}
extern "C" __global__ void widen(float* y, const __half* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __half2float(x[i]);
}
extern "C" __global__ void narrow(__half* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __float2half(x[i]);
}
