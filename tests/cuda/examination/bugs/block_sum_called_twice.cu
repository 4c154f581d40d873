// A sum over the block, called for the mean and at once again for the variance: the second call
// writes the scratch memory that slow threads of the first still read.
// kind: missing barrier
/* launch
x, out = noise(256), np.zeros(2, np.float32)
cu("mean_and_variance")((1,), (256,), (out, x, 256))
*/
__device__ float block_sum(float v) {
  __shared__ float warps[32];
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;  // BUG: no barrier since the last call
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += warps[w];  // BUG: still read
  return sum;
}

extern "C" __global__ void mean_and_variance(float* out, const float* x, int n) {
  float v = x[threadIdx.x];
  float mean = block_sum(v) / n;
  float variance = block_sum((v - mean) * (v - mean)) / n;
  if (threadIdx.x == 0) {
    out[0] = mean;
    out[1] = variance;
  }
}
