// The last block adds the sums of all blocks, but nothing says that they have arrived.
// kind: missing fence
/* launch
x, sums, total = ramp(256), np.zeros(8, np.float32), np.zeros(1, np.float32)
done = np.zeros(1, np.uint32)
cu("sum_all")((8,), (32,), (total, sums, done, x))
*/
extern "C" __global__ void sum_all(float* total, float* sums, unsigned* done, const float* x) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = v;  // BUG: a __threadfence() must follow
    if (atomicAdd(done, 1) == gridDim.x - 1) {
      float all = 0;
      for (int b = 0; b < gridDim.x; ++b) all += sums[b];  // BUG
      *total = all;
    }
  }
}
