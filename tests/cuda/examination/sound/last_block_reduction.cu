// The last block to finish adds up what all the others have written: with fences, in one launch.
// Source: CUDA C++ Programming Guide, "Memory Fence Functions".
// kind: sound
/* launch
x, sums, total = ramp(1000), np.zeros(8, np.float32), np.zeros(1, np.float32)
done = np.zeros(1, np.uint32)
k = cu("sum_all")
for _ in range(2):  # the counter must be 0 again for the second launch
    k((8,), (64,), (total, sums, done, x, 1000))
    same(total, x.sum())
*/
extern "C" __global__ void sum_all(float* total, volatile float* sums, unsigned* done,
                                   const float* x, int n) {
  __shared__ float s[64];
  __shared__ bool last;
  int t = threadIdx.x;
  float mine = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) mine += x[i];
  s[t] = mine;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();
  }
  if (t == 0) {
    sums[blockIdx.x] = s[0];
    __threadfence();  // the sum before the counter
    last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float all = 0;
    for (int b = 0; b < gridDim.x; ++b) all += sums[b];
    *total = all;
  }
}
