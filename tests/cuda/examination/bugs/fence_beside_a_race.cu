// The blocks' sums are handed over soundly; the sum inside each block is not.
// kind: race
/* launch
x, sums, total = ramp(512), np.zeros(4, np.float32), np.zeros(1, np.float32)
done = np.zeros(1, np.uint32)
cu("sum_all")((4,), (128,), (total, sums, done, x))
*/
extern "C" __global__ void sum_all(float* total, volatile float* sums, unsigned* done,
                                   const float* x) {
  __shared__ float s;
  int t = threadIdx.x;
  if (t == 0) s = 0;
  __syncthreads();
  s += x[blockIdx.x * blockDim.x + t];  // BUG: all threads of the block add to one number
  __syncthreads();
  if (t == 0) {
    sums[blockIdx.x] = s;
    __threadfence();
    if (atomicAdd(done, 1) == gridDim.x - 1) {
      __threadfence();
      float all = 0;
      for (int b = 0; b < gridDim.x; ++b) all += sums[b];
      *total = all;
    }
  }
}
