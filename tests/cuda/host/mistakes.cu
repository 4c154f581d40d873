// Kernels with one mistake each. test_fibre.py has the sentences they must cause, and the lines.
extern "C" __global__ void divergent(float* x, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = 1;
  if (i >= n)
    return;
  __syncthreads();
  x[i] = s[63 - threadIdx.x];
}
extern "C" __global__ void two_lines(float* x) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
}
extern "C" __global__ void branch(float* x) {
  if (threadIdx.x < 16) __syncthreads();
}
extern "C" __global__ void wrong_mask(int* x) {
  int v = threadIdx.x;
  if (threadIdx.x < 16)
    v += __shfl_down_sync(0xffffffff, v, 8);
  x[threadIdx.x] = v;
}
extern "C" __global__ void not_named(int* x) {
  x[threadIdx.x] = __shfl_sync(0x0000ffffu, threadIdx.x, 0);
}
extern "C" __global__ void reads_returned(int* x) {
  if (threadIdx.x == 5) return;
  x[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 5);
}
extern "C" __global__ void ragged(int* x) {
  int v = threadIdx.x;
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  x[threadIdx.x] = v;
}
extern "C" __global__ void waits_forever(int* x) {
  if (threadIdx.x < 8)
    __syncwarp();
  else
    __syncthreads();
}
extern "C" __global__ void spins(int* lock) {
  __shared__ int a;
  a = 0;
  while (atomicCAS(lock, 0, 1) != 0)
    ;
}
extern "C" __global__ void asserts(int* x) {
  __shared__ int a;
  a = 1;
  assert(threadIdx.x < 3);
}
extern "C" __global__ void mma(float* x) { asm volatile("mma.sync;"); }

// Sound ones, which strain the engine.
extern "C" __global__ void big_locals(float* x) {
  float mine[4096];
  for (int i = 0; i < 4096; ++i) mine[i] = threadIdx.x;
  __syncthreads();
  float s = mine[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s + mine[4095 - threadIdx.x];
}
extern "C" __global__ void block_local(float* x, int* visits) {
  __shared__ float s[64];
  if (threadIdx.x == 0) atomicAdd(&visits[blockIdx.x], 1);
  s[63 - threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
  __syncthreads();
  x[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];
}
__device__ int where() {
  return (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x;
}
extern "C" __global__ void helper_after_barrier(int* x) {
  int before = where();
  __syncthreads();
  int after = where();
  x[after] = before;
}
extern "C" __global__ void end_without_return(float* x) {
  __syncthreads();
  if (threadIdx.x < 32) __syncthreads();
}
