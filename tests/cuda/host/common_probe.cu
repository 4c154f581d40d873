// The parts of kernels/common.cuh, one kernel each, for test_common.py.
#include "common.cuh"

extern "C" __global__ void draw(unsigned int* out, unsigned long long seed,
                                unsigned long long stream,
                                unsigned long long counter, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = random_bits(seed, stream, counter, i);
}
extern "C" __global__ void draw_uniform(float* out, unsigned long long seed,
                                        unsigned long long stream,
                                        unsigned long long counter, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = uniform(random_bits(seed, stream, counter, i));
}
// A thread for each block of eight draws.
extern "C" __global__ void draw_eight(unsigned int* out, unsigned long long seed,
                                      unsigned long long stream,
                                      unsigned long long counter, int n) {
  int block = blockIdx.x * blockDim.x + threadIdx.x;
  if (block * 8 >= n) return;
  unsigned int draws[8];
  philox(counter + block, seed, stream, draws);
  for (int k = 0; k < 8 && block * 8 + k < n; ++k) out[block * 8 + k] = draws[k];
}
extern "C" __global__ void sums(float* sum, float* top, const float* x, int cols) {
  __shared__ float scratch[33];
  for (int i = threadIdx.x; i < 33; i += blockDim.x) scratch[i] = 1e9f;  // left by somebody else
  __syncthreads();
  float v = x[blockIdx.x * cols + threadIdx.x];
  float s = block_sum(v, scratch), m = block_max(v, scratch);
  sum[blockIdx.x * cols + threadIdx.x] = s;
  top[blockIdx.x * cols + threadIdx.x] = m;
}
extern "C" __global__ void cast(T* out, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = from_float<T>(to_float(x[i]) * 3);
}
